// The live page: one event stream for what changes each second, plain requests for the rest.

import { openCamera } from "./camera.js";
import { sparkline } from "./charts.js";
import { $, act, all, api, el, gpus, guard, kindOf, moment, path, percent, refresh, showShares, showState } from "./tools.js";

let status = null; // the newest
let detail = null; // the camera that is shown alone
let events = null;

const tileId = (camera) => document.getElementById(`tile-${camera}`);

function newTile(camera) {
  const tile = $("#tile").content.firstElementChild.cloneNode(true);
  tile.id = `tile-${camera}`;
  $(".picture", tile).dataset.camera = camera;
  $("a", tile).textContent = camera;
  $("a", tile).href = `#${encodeURIComponent(camera)}`;
  return tile;
}

function showTile(camera) {
  const tile = tileId(camera.id) ?? newTile(camera.id);
  const { retraining: job, inference_share_milli: inference, retraining_share_milli: retraining } = camera;
  tile.dataset.kind = kindOf(camera);
  showState($(".pill", tile), camera);
  $(".chip", tile).hidden = !job && !camera.frozen;
  $(".chip", tile).textContent = job ? `Retraining ${job.epoch}/${job.epochs}` : "Frozen";
  $(".accuracy", tile).textContent = percent(camera.accuracy);
  showShares($(".shares", tile), inference, retraining, status.capacity_milli);
  const told = `inference ${gpus(inference)}${retraining ? `, retraining ${gpus(retraining)}` : ""} GPU`;
  $(".line", tile).textContent = `Model ${camera.model_version} · ${told}`;
  $(".note", tile).textContent = camera.reason || camera.health_reason;
  return tile;
}

function showTiles() {
  const tiles = status.cameras.map(showTile), before = [...$("#tiles").children];
  if (tiles.length === before.length && tiles.every((tile, at) => tile === before[at])) return;
  $("#tiles").replaceChildren(...tiles);
  tiles.filter((tile) => !before.includes(tile)).forEach(fill);
}

async function fill(tile) {
  const camera = $(".picture", tile).dataset.camera;
  refresh($(".picture", tile), camera);
  const series = await api(path(camera, "/series?hours=1")).catch(() => null);
  if (series) sparkline($(".spark", tile), series);
}

const someOf = (cameras, none) => {
  const more = cameras.length > 2 ? ` and ${cameras.length - 2} more` : "";
  return cameras.slice(0, 2).map((camera) => camera.id).join(", ") + more || none;
};

function showStats() {
  const { cameras, capacity_milli: capacity } = status;
  const sum = (of, among = cameras) => among.reduce((total, camera) => total + of(camera), 0);
  const known = cameras.filter((camera) => camera.accuracy !== null && camera.state === "serving");
  const weight = sum((camera) => camera.weight, known), due = sum((camera) => camera.frames_due);
  const on = cameras.filter((camera) => kindOf(camera) !== "off"), ill = on.filter((camera) => kindOf(camera) !== "ok");
  const inference = sum((camera) => camera.inference_share_milli), retraining = sum((camera) => camera.retraining_share_milli);
  $("#mean").textContent = percent(weight ? sum((camera) => camera.weight * camera.accuracy, known) / weight : null);
  $("#healthy").textContent = `${on.length - ill.length} of ${on.length}`;
  $("#unhealthy").textContent = someOf(ill, "all well");
  const retrained = cameras.filter((camera) => camera.retraining);
  $("#retraining").textContent = retrained.length;
  $("#preparing").textContent = status.preparing ? "labels are being made" : someOf(retrained, "no camera");
  $("#analysed").textContent = percent(due ? sum((camera) => camera.frames_analysed) / due : null);
  $("#gpus").textContent = `${gpus(inference + retraining)} of ${gpus(capacity)}`;
  $("#inference").textContent = gpus(inference);
  $("#training").textContent = gpus(retraining);
  showShares($(".stats .shares"), inference, retraining, capacity);
}

function showWindow() {
  const { window_opened_us: opened, window_ends_us: ends, now_us: now } = status;
  const left = Math.max(0, Math.round((ends - now) / 1e6));
  const ending = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
  $("#window-text").textContent = status.window < 0 ? "Starting …" : `Window ${status.window} · ends in ${ending}`;
  $("#window").value = ends > opened ? Math.min(1, Math.max(0, (now - opened) / (ends - opened))) : 0;
  $("#scheduler").textContent = `scheduler ${status.scheduler} · `;
}

function warningRow({ unix_s: unixS, source, text }) {
  return el("li", {}, el("time", {}, moment(unixS, status.now_unix_s)), el("b", {}, source), text);
}

function show() {
  showStats();
  showWindow();
  showTiles();
  $("#none").hidden = status.cameras.length > 0;
  $("#warnings").hidden = !status.warnings.length;
  $("#warnings ul").replaceChildren(...status.warnings.slice(-20).reverse().map(warningRow));
  route();
  detail?.update();
}

// The address names what is shown: all cameras, or one.
function route() {
  const name = decodeURIComponent(location.hash.slice(1));
  const there = status?.cameras.some((camera) => camera.id === name);
  if (there ? detail?.name === name : !detail) return;
  detail?.close();
  detail = there ? openCamera(name, () => status) : null;
  $("#overview").hidden = there;
  $("#camera").hidden = !there;
  document.title = `${there ? `${name} – ` : ""}${document.body.dataset.name} – Ekya`;
  detail?.update();
  scrollTo(0, 0);
  all(there ? "#camera .picture" : "#tiles .picture").forEach((frame) => refresh(frame, frame.dataset.camera));
}

function link(state, text) {
  $("#link").dataset.link = state;
  if ($("#link").textContent !== text) $("#link").textContent = text;
}

function listen() {
  events?.close();
  events = new EventSource("api/v1/events");
  events.addEventListener("status", (event) => {
    status = JSON.parse(event.data);
    link("live", "Live");
    show();
  });
  events.addEventListener("answer", (event) => {
    const { camera } = JSON.parse(event.data);
    for (const frame of all(".picture")) if (frame.dataset.camera === camera) refresh(frame, camera);
  });
  events.onerror = () => {
    link("lost", "Reconnecting");
    if (events.readyState === EventSource.CLOSED) setTimeout(() => api("status").then(listen, events.onerror), 3000);
  };
}

const adding = $("#adding");
async function add(event) {
  event.preventDefault();
  const { id, kind, url, weight } = Object.fromEntries(new FormData(event.target));
  const source = kind === "camera" ? { kind, url } : { kind, files: [url] };
  const send = () => api("cameras", "POST", { id, source, weight: Number(weight) });
  const problem = await act(event.submitter, `${id} is added`, send);
  $(".problem", adding).textContent = problem;
  if (problem) return;
  event.target.reset();
  adding.close();
}
$("#add").addEventListener("click", () => adding.showModal());
$("[value=cancel]", adding).addEventListener("click", () => adding.close());
$("form", adding).addEventListener("submit", add);
$("#logout")?.addEventListener("click", async () => {
  await fetch("logout", { method: "POST", headers: guard });
  location.assign("login");
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => (document.hidden ? events.close() : listen()));
setInterval(() => document.hidden || [...$("#tiles").children].forEach(fill), 60000);
listen();

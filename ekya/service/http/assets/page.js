// The live page. The server renders it whole; once a second a newer rendering is put in its place, node by node.

import { followSeries, sparkline } from "./charts.js";
import { $, act, all, api, confirmed, el, guard, path, showTimes } from "./tools.js";

const MORPH = {
  callbacks: {
    beforeNodeMorphed: (old) => old.nodeType !== Node.ELEMENT_NODE || old.dataset.own === undefined,
    beforeAttributeUpdated: (name) => name !== "open", // of details that the reader has opened
  },
};

let rendering = false;
async function update() {
  if (rendering) return;
  rendering = true;
  try {
    const answer = await fetch(location.href);
    if (answer.redirected) return void location.assign(answer.url); // the session has ended, or the camera is gone
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    showTimes(page);
    Idiomorph.morph(document.body, page.body, MORPH);
    fillNew();
  } catch {
    // The event stream says that the service is away.
  } finally {
    rendering = false;
  }
}

// Asks for what the server does not render, where a node is new.
function fillNew() {
  for (const node of all("[data-own][data-camera]:not([data-asked])")) {
    node.dataset.asked = "";
    if (node.matches(".picture")) showPicture(node);
    else showSpark(node);
  }
}

async function showSpark(node) {
  const series = await api(path(node.dataset.camera, "/series?hours=1")).catch(() => null);
  if (series) sparkline(node, series);
}

// Loads the newest picture beside the one that is shown, lest it flicker; only in view, and not too often.
function showPicture(frame) {
  const box = frame.getBoundingClientRect(), camera = frame.dataset.camera;
  if (frame.dataset.busy || document.hidden || box.bottom < 0 || box.top > innerHeight) return;
  frame.dataset.busy = "1";
  setTimeout(() => delete frame.dataset.busy, frame.closest(".tile") ? 2000 : 1000);
  const next = el("img", { alt: `Newest frame of ${camera} with its boxes` });
  next.onload = () => frame.replaceChildren(next);
  next.src = `api/v1/${path(camera, "/picture.jpg")}?${Date.now()}`;
}

async function showValidation(details) {
  const camera = $("#camera").dataset.camera;
  const answer = await fetch(`validation?camera=${encodeURIComponent(camera)}&job=${details.dataset.job}`);
  $(".validation", details).innerHTML = answer.ok ? await answer.text() : "It is not kept any more.";
}

let events = null;
function link(state, text) {
  $("#link").dataset.link = state;
  if ($("#link").textContent !== text) $("#link").textContent = text;
}
function listen() {
  events?.close();
  events = new EventSource("api/v1/events");
  events.addEventListener("status", () => {
    link("live", "Live");
    update();
  });
  events.addEventListener("answer", (event) => {
    const { camera } = JSON.parse(event.data);
    for (const frame of all(".picture")) if (frame.dataset.camera === camera) showPicture(frame);
  });
  events.onerror = () => {
    link("lost", "Reconnecting");
    if (events.readyState === EventSource.CLOSED) setTimeout(() => api("status").then(listen, events.onerror), 3000);
  };
}

// What is done. Buttons name their request; forms have its values.
async function press(button) {
  const { path: route, method, done, ask, yes, version } = button.dataset;
  const values = version ? { version: Number(version) } : null;
  if (ask && !(await confirmed(ask, yes))) return;
  await act(button, done, () => api(route, method, values));
  update();
}

function valuesOf(form) {
  const given = [...new FormData(form)].filter(([, text]) => text !== "");
  const typed = ([name, text]) => [name, form.elements[name].type === "number" ? Number(text) : text];
  return Object.fromEntries(given.map(typed));
}

async function add(form, button) {
  const { kind, url, ...camera } = valuesOf(form);
  camera.source = kind === "camera" ? { kind, url } : { kind, files: [url] };
  const problem = await act(button, `${camera.id} is added`, () => api("cameras", "POST", camera));
  $(".problem", form).textContent = problem;
  if (problem) return;
  form.reset();
  $("#adding").close();
}

async function change(form, button) {
  const problem = await act(button, form.dataset.done, () => api(form.dataset.path, "PATCH", valuesOf(form)));
  if (!problem) delete form.dataset.own;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.do) press(button);
  else if (button?.id === "add") $("#adding").showModal();
  else if (button?.value === "cancel") $("#adding").close();
  else if (button?.id === "logout") {
    fetch("logout", { method: "POST", headers: guard }).then(() => location.assign("login"));
  }
});
document.addEventListener("submit", (event) => {
  if (event.target.method === "dialog") return;
  event.preventDefault();
  (event.target.id === "terms" ? change : add)(event.target, event.submitter);
});
document.addEventListener("input", (event) => {
  if (event.target.form?.id === "terms") event.target.form.dataset.own = ""; // what is being typed stays
});
document.addEventListener("toggle", (event) => {
  if (event.target.open && event.target.dataset.job) showValidation(event.target);
}, true); // it does not bubble
document.addEventListener("visibilitychange", () => (document.hidden ? events.close() : listen()));
const withoutToken = () =>
  location.hash.startsWith("#token=") && history.replaceState(null, "", location.pathname + location.search);
addEventListener("hashchange", withoutToken);
addEventListener("scroll", () => all(".picture:not(:has(img))").forEach(showPicture), { passive: true });
setInterval(() => document.hidden || all(".spark").forEach(showSpark), 60000);
withoutToken();
showTimes(document);
fillNew();
if ($("#camera")) followSeries($("#camera").dataset.camera);
listen();

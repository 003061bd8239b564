// One camera: what it sees, how it did, what was decided and why, and what can be done.

import { timeline } from "./charts.js";
import { $, act, all, api, confirmed, el, gpus, moment, path, percent, refresh, showState } from "./tools.js";

const DONE = {
  pause: "is paused", resume: "goes on", freeze: "keeps its model", unfreeze: "is retrained again",
  labels: "will be labelled", "roll-back": "serves its previous model", remove: "is removed",
};
const ASKS = {
  remove: (name) => [`Remove ${name} for good?`, "Remove"],
  "roll-back": (name) => [`Serve the previous model of ${name} again?`, "Roll back"],
};

function fill(table, rows) {
  const cell = (parts) => el("td", { className: typeof parts.at(-1) === "string" && parts.length > 1 ? parts.pop() : "" }, ...parts);
  $("tbody", table).replaceChildren(...rows.map((row) => el("tr", {}, ...row.map(cell))));
  table.parentElement.hidden = !rows.length;
  table.parentElement.nextElementSibling.hidden = rows.length > 0;
}

const retrainingRow = (one, nowS) => [
  [moment(one.ended_unix_s, nowS), "when"],
  [el("div", {}, one.config), el("div", { className: `outcome ${one.outcome}` }, one.reason ? `${one.outcome}: ${one.reason}` : one.outcome)],
  [percent(one.before), "n"], [percent(one.after), one.after > one.before ? "n up" : "n"], [one.gpu_s.toFixed(1), "n"],
];
const modelRow = (one) => [
  [`${one.version}${one.serving ? " · serving" : ""}`, one.serving ? "serving" : ""],
  [one.config ? `${one.config}, in window ${one.window}` : one.version ? `taken over in window ${one.window}` : "base model"],
  [percent(one.validation_accuracy), "n"],
];

const audit = ({ accuracy, low, high, frames }) => `${percent(accuracy)} (${percent(low)} to ${percent(high)}, ${frames} frames)`;

function facts(camera, nowS) {
  const { served, kept, failed } = camera.retrainings;
  const by = camera.resolution ? `at ${camera.resolution} px` : "by the golden detector";
  const frames = camera.every === 1 ? "every frame" : `one frame of ${camera.every}`;
  const analysed = camera.frames_due ? ` (${percent(camera.frames_analysed / camera.frames_due)})` : "";
  return [
    ["Accuracy", percent(camera.accuracy)],
    ["Audited accuracy", camera.audited ? audit(camera.audited) : "not known yet"],
    ["Model", `version ${camera.model_version}${camera.frozen ? ", frozen" : ""}`],
    ["Inference", camera.every === null ? "none" : `${gpus(camera.inference_share_milli)} GPU, ${frames} ${by}`],
    ["Retraining", camera.retraining ? `${gpus(camera.retraining_share_milli)} GPU` : "none now"],
    ["Frames analysed", `${camera.frames_analysed} of ${camera.frames_due}${analysed}`],
    ["Labels", camera.labels_unix_s === null ? "none yet" : `${camera.labels}, newest at ${moment(camera.labels_unix_s, nowS)}`],
    ["Scene changes", camera.drifts],
    ["Retrainings", `${served} served, ${kept} kept the model, ${failed} failed`],
  ];
}

// Shows a camera until it is closed. `now` returns the newest status.
export function openCamera(name, now) {
  const page = $("#camera"), terms = $("#terms"), picture = $(".picture", page);
  const ends = new AbortController(), on = { signal: ends.signal };
  let hours = 1, series = null, weightIsEdited = false;

  function update() {
    const camera = now().cameras.find((one) => one.id === name);
    if (!camera) return;
    const toggle = (does, undoes, undo, text) => {
      const button = $(`[data-do=${does}], [data-do=${undoes}]`, page);
      button.dataset.do = undo ? undoes : does;
      button.textContent = text;
    };
    const paused = camera.state === "paused";
    toggle("pause", "resume", paused, paused ? "Resume" : "Pause");
    toggle("freeze", "unfreeze", camera.frozen, camera.frozen ? "Unfreeze model" : "Freeze model");
    showState($(".heading .pill", page), camera);
    $(".reason", page).textContent = camera.reason || camera.health_reason;
    const lines = facts(camera, now().now_unix_s).flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, String(text))]);
    $(".facts", page).replaceChildren(...lines);
    $("#why").textContent = camera.why || "No plan yet.";
    const job = camera.retraining;
    $("#progress").hidden = !job;
    if (job) {
      const best = job.best_accuracy === null ? "" : `best so far ${percent(job.best_accuracy)}, `;
      $("#progress span").textContent = `Retraining with ${job.config}: epoch ${job.epoch} of ${job.epochs}, ${best}expected ${percent(job.expected_accuracy)}`;
      $("#progress progress").value = job.epoch / job.epochs;
    }
    if (!weightIsEdited) terms.weight.value = camera.weight;
  }

  const draw = () => series && timeline($("#chart"), series, hours, now().now_unix_s, now().capacity_milli);
  async function load() {
    const asked = hours;
    const parts = [`/series?hours=${hours}`, "/retrainings", "/models"].map((rest) => api(path(name, rest)));
    const [read, retrainings, models] = await Promise.all(parts).catch(() => []); // the page says so itself
    if (!read || ends.signal.aborted || asked !== hours) return;
    series = read;
    if (!$("#chart").matches(":hover, :focus-within")) draw();
    fill($("#retrainings"), retrainings.reverse().map((one) => retrainingRow(one, now().now_unix_s)));
    fill($("#models"), models.reverse().map(modelRow));
    $("[data-do=roll-back]", page).disabled = models.length < 2;
  }

  async function ask(event) {
    const what = event.currentTarget.dataset.do;
    if (ASKS[what] && !(await confirmed(ASKS[what](name)))) return;
    const send = () => (what === "remove" ? api(path(name), "DELETE") : api(path(name, `/${what}`), "POST"));
    if (await act(event.target, `${name} ${DONE[what]}`, send)) return;
    if (what === "remove") location.hash = "";
    else load();
  }
  function show(button) {
    hours = Number(button.dataset.hours);
    for (const one of all("[data-hours]", page)) one.setAttribute("aria-pressed", one === button);
    load().then(draw);
  }
  async function change(event) {
    event.preventDefault();
    const values = { weight: Number(terms.weight.value) };
    if (terms.max_age_s.value) values.max_age_s = Number(terms.max_age_s.value);
    weightIsEdited = Boolean(await act(event.submitter, `The terms of ${name} are changed`, () => api(path(name), "PATCH", values)));
  }
  for (const button of all("[data-do]", page)) button.addEventListener("click", ask, on);
  for (const button of all("[data-hours]", page)) button.addEventListener("click", () => show(button), on);
  terms.weight.addEventListener("input", () => (weightIsEdited = true), on);
  terms.addEventListener("submit", change, on);
  addEventListener("resize", draw, on);
  const timer = setInterval(load, 10000);

  $("#camera-name").textContent = name;
  picture.dataset.camera = name;
  picture.replaceChildren(el("span", {}, "No picture"));
  $("#chart").replaceChildren();
  for (const table of all("table", page)) fill(table, []);
  terms.reset();
  show($("[data-hours='1']", page));
  return { name, update, close: () => (ends.abort(), clearInterval(timer)) };
}

// Charts in SVG. Colours are classes, so that they follow the page's theme.

import { $, all, api, clock, day, el, gpus, moment, path, percent } from "./tools.js";

const STEPS_S = [300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

function svg(name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

// Splits the points into runs without unknown values, and without the times in which the service was down.
function runs(times, values) {
  const found = [];
  let run = null;
  for (let i = 0; i < times.length; i++) {
    const far = times.at(-1) - times[i - 1] > 3500 ? 1000 : 60; // older points are five minutes apart
    if (values[i] === null || times[i] - times[i - 1] > far) run = null;
    if (values[i] === null) continue;
    if (!run) found.push((run = []));
    run.push(i);
  }
  return found;
}

const line = (run, x, y) => run.map((i, at) => `${at ? "L" : "M"}${x(i).toFixed(1)} ${y(i).toFixed(1)}`).join("");
const area = (run, x, top, base) => `${line(run, x, top)}${line([...run].reverse(), x, base).replace("M", "L")}Z`;

// Accuracy without axes, for a tile.
export function sparkline(host, { unix_s: times, accuracy }) {
  const known = accuracy.filter((value) => value !== null);
  const picture = svg("svg", { viewBox: "0 0 260 38", preserveAspectRatio: "none" });
  if (known.length > 1) {
    const low = Math.max(0, Math.min(...known) - 0.03), high = Math.min(1, Math.max(...known) + 0.03);
    const x = (i) => ((times[i] - times[0]) / (times.at(-1) - times[0])) * 260;
    const y = (i) => 36 - ((accuracy[i] - low) / (high - low)) * 34;
    for (const run of runs(times, accuracy)) {
      picture.append(svg("path", { class: "area", d: area(run, x, y, () => 38) }));
      picture.append(svg("path", { class: "accuracy", d: line(run, x, y) }));
    }
  }
  host.replaceChildren(picture);
}

const key = ([kind, text]) => el("span", {}, el("i", { className: kind }), text);

// Accuracy above, stacked shares below, over one axis of time. A pointer or the arrow keys read single values.
function timeline(host, series, hours, nowS, capacityMilli) {
  const { unix_s: times, accuracy, inference_milli: inference, retraining_milli: retraining } = series;
  const width = Math.max(280, host.clientWidth), left = 44, right = width - 8, fromS = nowS - hours * 3600;
  const x = (s) => left + ((s - fromS) / (nowS - fromS)) * (right - left);
  const known = accuracy.filter((value) => value !== null), least = known.length ? Math.min(...known, 0.95) : 0;
  const grid = least > 0.82 ? 0.05 : least > 0.52 ? 0.1 : 0.25, floor = Math.floor(least / grid + 1e-6) * grid;
  const [above, gap, below] = width > 480 ? [235, 30, 105] : [150, 28, 80], base = 10 + above + gap + below;
  const high = (value) => 10 + ((1 - value) / (1 - floor)) * above;
  const low = (milli) => base - Math.min(1, milli / capacityMilli) * below;
  const at = (i) => x(times[i]);
  const about = `Accuracy and shares of the last ${hours} hours; the arrow keys read single values`;
  const height = base + 24, size = { viewBox: `0 0 ${width} ${height}`, width, height };
  const picture = svg("svg", { ...size, role: "img", tabindex: 0, "aria-label": about });
  const rule = (y, text) => {
    picture.append(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    picture.append(svg("text", { class: "end", x: left - 8, y: y + 4 }, text));
  };
  for (let value = 1; value > floor - 1e-6; value -= grid) rule(high(value), `${Math.round(value * 100)}%`);
  for (const milli of [0, capacityMilli / 2, capacityMilli]) rule(low(milli), gpus(milli));
  const step = STEPS_S.find((s) => (nowS - fromS) / s <= width / 62) ?? 86400;
  const zoneS = new Date(nowS * 1000).getTimezoneOffset() * 60;
  for (let s = Math.ceil((fromS - zoneS) / step) * step + zoneS; s < nowS; s += step) {
    if (x(s) < left + 16 || x(s) > right - 16) continue;
    picture.append(svg("line", { class: "grid faint", x1: x(s), x2: x(s), y1: 10, y2: base }));
    picture.append(svg("text", { class: "middle", x: x(s), y: base + 19 }, step === 86400 ? day(s) : clock(s)));
  }
  for (const run of runs(times, inference)) {
    const both = (i) => low(inference[i] + retraining[i]);
    picture.append(svg("path", { class: "inference", d: area(run, at, (i) => low(inference[i]), () => low(0)) }));
    picture.append(svg("path", { class: "training", d: area(run, at, both, (i) => low(inference[i])) }));
  }
  for (const run of runs(times, accuracy)) {
    picture.append(svg("path", { class: "accuracy", d: line(run, at, (i) => high(accuracy[i])) }));
  }
  const keys = [["accuracy", "Accuracy"], ["inference", "Inference, GPUs"], ["training", "Retraining, GPUs"]];
  const cursor = svg("line", { class: "cursor", y1: 10, y2: base, visibility: "hidden" });
  const tip = el("output", { className: "tip", hidden: true });
  picture.append(cursor);
  host.replaceChildren(picture, el("p", { className: "legend" }, ...keys.map(key)), tip);

  let shown = null;
  function show(i) {
    shown = i;
    tip.hidden = i === null;
    cursor.setAttribute("visibility", i === null ? "hidden" : "visible");
    if (i === null) return;
    cursor.setAttribute("x1", at(i));
    cursor.setAttribute("x2", at(i));
    const used = `inference ${gpus(inference[i])} · retraining ${gpus(retraining[i])}`;
    tip.textContent = `${moment(times[i], nowS)} · accuracy ${percent(accuracy[i])} · ${used}`;
  }
  picture.onpointermove = (event) => {
    const s = fromS + ((event.clientX - picture.getBoundingClientRect().left - left) / (right - left)) * (nowS - fromS);
    const away = times.map((time) => Math.abs(time - s));
    if (away.length) show(away.indexOf(Math.min(...away)));
  };
  picture.onpointerleave = picture.onblur = () => show(null);
  picture.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !times.length) return;
    event.preventDefault();
    show(Math.min(times.length - 1, Math.max(0, (shown ?? times.length) + move)));
  };
}

// Keeps the timeline of a camera new, and shows the hours that are chosen.
export function followSeries(camera) {
  const chart = $("#chart"), { dataset: fleet } = document.body;
  let hours = 1, series = null;
  const draw = () => series && timeline(chart, series, hours, Number(fleet.now), Number(fleet.capacity));
  async function load() {
    const asked = hours;
    const read = await api(path(camera, `/series?hours=${hours}`)).catch(() => null); // the page says so itself
    if (!read || asked !== hours) return;
    series = read;
    if (!chart.matches(":hover, :focus-within")) draw();
  }
  function choose(button) {
    hours = Number(button.dataset.hours);
    for (const one of all("[data-hours]")) one.setAttribute("aria-pressed", one === button);
    load().then(draw);
  }
  for (const button of all("[data-hours]")) button.addEventListener("click", () => choose(button));
  addEventListener("resize", draw);
  setInterval(load, 10000);
  load();
}

// What the parts of the page share: elements, texts, requests, messages and dialogs.

export const $ = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];
export const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)}%`);
export const gpus = (milli) => (milli / 1000).toFixed(2);
export const clock = (unixS) => new Date(unixS * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
export const day = (unixS) => new Date(unixS * 1000).toLocaleDateString([], { weekday: "short", day: "numeric" });
export const moment = (unixS, nowS) => (nowS - unixS < 72000 ? clock(unixS) : `${day(unixS)} ${clock(unixS)}`);
export const path = (camera, rest = "") => `cameras/${encodeURIComponent(camera)}${rest}`;
export const guard = { [document.body.dataset.guard]: "1" };

export function el(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export async function api(route, method = "GET", values = null) {
  const headers = values ? { ...guard, "Content-Type": "application/json" } : guard;
  const answer = await fetch(`api/v1/${route}`, { method, headers, body: values && JSON.stringify(values) });
  if (answer.status === 401) location.assign("login");
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer.status === 204 ? null : answer.json();
}

let fading;
export function tell(text, bad = false) {
  const toast = $("#toast");
  toast.textContent = text;
  toast.classList.toggle("bad", bad);
  toast.hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => (toast.hidden = true), bad ? 9000 : 4000);
}

// Does what a button asks for; the button is off meanwhile. Returns the problem, if there is one.
export async function act(button, done, work) {
  button.disabled = true;
  try {
    await work();
    tell(done);
    return "";
  } catch (error) {
    tell(error.message, true);
    return error.message;
  } finally {
    button.disabled = false;
  }
}

export function confirmed([question, yes]) {
  const dialog = $("#confirm");
  $("#confirm-text").textContent = question;
  $("[value=yes]", dialog).textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((choose) => {
    dialog.addEventListener("close", () => choose(dialog.returnValue === "yes"), { once: true });
  });
}

// A state has a colour, and a word that says the same.
const KINDS = { ok: "ok", stale: "warn", unlabelled: "warn", behind: "warn", restarting: "warn", lost: "bad", "set aside": "bad" };
export const stateOf = (camera) => (camera.state === "serving" ? camera.health : camera.state);
export const kindOf = (camera) => KINDS[stateOf(camera)] ?? "off";

export function showState(pill, camera) {
  const word = stateOf(camera);
  pill.dataset.kind = kindOf(camera);
  pill.textContent = word === "ok" ? "OK" : word[0].toUpperCase() + word.slice(1);
}

export function showShares(bar, inferenceMilli, retrainingMilli, capacityMilli) {
  bar.children[0].style.width = `${(100 * inferenceMilli) / capacityMilli}%`;
  bar.children[1].style.width = `${(100 * retrainingMilli) / capacityMilli}%`;
}

// Loads the newest picture beside the one that is shown, lest it flicker; only in view, and not too often.
export function refresh(frame, camera) {
  const box = frame.getBoundingClientRect();
  if (frame.dataset.busy || document.hidden || !box.width || box.bottom < 0 || box.top > innerHeight) return;
  frame.dataset.busy = "1";
  setTimeout(() => delete frame.dataset.busy, frame.closest(".tile") ? 2000 : 1000);
  const next = el("img", { alt: `Newest frame of ${camera} with its boxes` });
  next.onload = () => frame.dataset.camera === camera && frame.replaceChildren(next);
  next.src = `api/v1/${path(camera, "/picture.jpg")}?${Date.now()}`;
}

// What the parts of the page share: elements, texts, requests, messages and questions.

export const $ = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];
export const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)}%`);
export const gpus = (milli) => (milli / 1000).toFixed(2);
export const path = (camera, rest = "") => `cameras/${encodeURIComponent(camera)}${rest}`;
export const guard = { [document.body.dataset.guard]: "1" };

// Times are those of the reader's place, which the server does not know.
const HOUR = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
export const clock = (unixS) => new Date(unixS * 1000).toLocaleTimeString([], HOUR);
export const day = (unixS) => new Date(unixS * 1000).toLocaleDateString([], { weekday: "short", day: "numeric" });
export const moment = (unixS, nowS) => (nowS - unixS < 72000 ? clock(unixS) : `${day(unixS)} ${clock(unixS)}`);
export function showTimes(page) {
  const nowS = Number(page.body.dataset.now);
  for (const one of all("time", page)) one.textContent = moment(Number(one.dataset.unix), nowS);
}

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
function tell(text, bad = false) {
  const toast = $("#toast");
  toast.textContent = text;
  toast.classList.toggle("bad", bad);
  toast.hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => (toast.hidden = true), bad ? 9000 : 4000);
}

// Does what a button asks for, which is off meanwhile, and tells so, or what it waits for. Returns the problem, if any.
export async function act(button, done, work) {
  button.disabled = true;
  button.dataset.own = ""; // or the next rendering would turn it on
  try {
    const note = await work();
    if (note?.done === false) tell(note.note, true);
    else tell(note ? `${done}; ${note.note}` : done);
    return "";
  } catch (error) {
    tell(error.message, true);
    return error.message;
  } finally {
    button.disabled = false;
    delete button.dataset.own;
  }
}

export function confirmed(question, yes) {
  const dialog = $("#confirm");
  $("#confirm-text").textContent = question;
  $("[value=yes]", dialog).textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((choose) => {
    dialog.addEventListener("close", () => choose(dialog.returnValue === "yes"), { once: true });
  });
}

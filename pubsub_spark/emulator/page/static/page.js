// The live part of the page: values and charts from the server's events, lists fetched again when they have changed.
// Without it everything works by reloading.
"use strict";

const body = document.body;
const kinds = ["resources", "messages", "calls"]; // of changes, and of lists that show them
let shown = null; // the counts of changes that the lists on the page are of
let events = null;
let isFresh = !document.hidden; // whether the lists are of the moment when events begin

function update(event) {
  const tick = JSON.parse(event.data);
  document.querySelector("[data-clock]").textContent = tick.clock;
  for (const place of document.querySelectorAll("[data-name]")) {
    const fields = tick.fields[place.dataset.name] || {};
    for (const metric of place.querySelectorAll("[data-field]")) {
      const drawn = fields[metric.dataset.field];
      if (!drawn) continue;
      metric.querySelector(".value").textContent = drawn.text;
      metric.querySelector("polyline").setAttribute("points", drawn.points);
      metric.querySelector("svg").setAttribute("aria-label", drawn.label);
    }
  }
  const before = shown;
  shown = Object.fromEntries(kinds.map((kind) => [kind, tick[kind]]));
  if (before) refresh(kinds.filter((kind) => shown[kind] !== before[kind]));
}

// A list in which somebody chooses or moves stays as it is.
const isInUse = (list) => list.querySelector("input:checked") || list.contains(document.activeElement);

async function refresh(changed) {
  const lists = [...document.querySelectorAll("[data-refresh]")].filter((list) => changed.includes(list.dataset.refresh));
  if (!lists.length) return;
  const answer = await fetch(body.dataset.path, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const list of lists) {
    const next = fresh.getElementById(list.id);
    if (!next || isInUse(list)) continue;
    for (const open of list.querySelectorAll("details[open][data-key]")) {
      const same = next.querySelector(`details[data-key="${open.dataset.key}"]`);
      if (same) same.open = true;
    }
    list.replaceChildren(...document.adoptNode(next).childNodes);
  }
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-choose-all]")) return;
  for (const box of document.querySelectorAll('input[name="lease"]')) box.checked = event.target.checked;
});

// A browser has six connections to a server, for all of its tabs: one that nobody sees leaves them to the others.
function watch() {
  if (document.hidden) {
    events?.close();
    events = null;
  } else if (!events) {
    events = new EventSource(body.dataset.live);
    events.onmessage = update;
    events.onopen = () => {
      if (!isFresh) refresh(kinds);
      isFresh = false;
    };
  }
}

if (body.dataset.live) {
  watch();
  document.addEventListener("visibilitychange", watch);
}

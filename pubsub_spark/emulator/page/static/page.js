// The live part of the page: values and charts from the server's events, lists fetched again when they have changed.
// Without it everything works by reloading.
"use strict";

const body = document.body;
const kinds = ["resources", "messages", "calls"]; // of changes, and of lists that show them
let shown = null; // the counts of changes that the lists on the page are of
let events = null;
let isFresh = !document.hidden; // whether the lists are of the moment when events begin

function setText(parent, selector, text) {
  const element = parent.querySelector(selector);
  if (element && element.textContent !== text) element.textContent = text;
}

function update(event) {
  const tick = JSON.parse(event.data);
  setText(document, "[data-clock]", tick.clock);
  setText(document, "[data-ahead]", tick.ahead);
  for (const place of document.querySelectorAll("[data-name]")) {
    for (const [field, text] of Object.entries(tick.fields[place.dataset.name] || {})) setText(place, `[data-field=${field}]`, text);
  }
  for (const figure of document.querySelectorAll("[data-chart]")) draw(figure, tick.charts[figure.dataset.chart]);
  const before = shown;
  shown = Object.fromEntries(kinds.map((kind) => [kind, tick[kind]]));
  if (before) refresh(kinds.filter((kind) => shown[kind] !== before[kind]));
}

function draw(figure, chart) {
  if (!chart) return;
  for (const [field, line] of Object.entries(chart.lines)) figure.querySelector(`[data-line=${field}]`).setAttribute("points", line);
  figure.dataset.values = JSON.stringify(chart.values);
  figure.querySelector("svg").setAttribute("aria-label", chart.label);
  setText(figure, "[data-top]", chart.top);
  setText(figure, "[data-middle]", chart.middle);
  setText(figure, "[data-since]", chart.since);
}

// The values under the pointer, above the chart.
function point(event) {
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const svg = figure.querySelector("svg");
    const isHere = svg.contains(event.target);
    const cursor = figure.querySelector("[data-cursor]");
    cursor.style.visibility = isHere ? "visible" : "hidden";
    let text = "";
    if (isHere) {
      const values = Object.values(JSON.parse(figure.dataset.values));
      const box = svg.getBoundingClientRect();
      const last = values[0].length - 1;
      const index = Math.min(last, Math.max(0, Math.round(((event.clientX - box.left) / box.width) * last)));
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, last ? (index / last) * 600 : 600);
      text = `${values.map((each) => each[index]).join(" / ")}, ${last - index} s ago`;
    }
    setText(figure, "[data-pointed]", text);
  }
}

// A list in which the user selects or moves is not replaced.
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
  choose();
}

// The buttons for chosen messages work when some are chosen, and say why when not.
function choose() {
  const bar = document.querySelector("[data-unchosen]");
  if (!bar) return;
  const boxes = [...document.querySelectorAll('input[name="lease"]')];
  const isChosen = boxes.some((box) => box.checked);
  for (const button of bar.querySelectorAll("button")) button.disabled = !isChosen;
  bar.querySelector("[data-choose-all]").disabled = !boxes.length;
  setText(bar, ".reason", isChosen ? "" : boxes.length ? bar.dataset.unchosen : bar.dataset.none);
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-choose-all]"))
    for (const box of document.querySelectorAll('input[name="lease"]')) box.checked = event.target.checked;
  choose();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
});

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);

// A browser has six connections to a server for all of its tabs. A hidden tab leaves them to the others.
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

choose();
if (body.dataset.live) {
  watch();
  document.addEventListener("visibilitychange", watch);
}

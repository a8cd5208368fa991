// What Bokeh's widgets leave to the page: its start, keys, clicks on thumbnails, and names for screen readers.
"use strict";

const LABELS = { k: "number of components", slice: "slice of the volume", sample: "number of the sample", search: "search by name",
  projection: "maximum projection" };
const WAIT = 100;

function model(name) {
  const document_ = window.Bokeh && Bokeh.documents[0];
  return document_ ? document_.get_model_by_name(name) : null;
}

function step(name, by) {
  const found = model(name);
  if (!found || found.disabled) return;
  const low = found.start ?? found.low ?? 0, high = found.end ?? found.high ?? Infinity;
  found.value = Math.min(high, Math.max(low, found.value + by));
}

// Elements in shadow roots, where Bokeh puts its widgets.
function* inside(root) {
  for (const element of root.querySelectorAll("*")) {
    yield element;
    if (element.shadowRoot) yield* inside(element.shadowRoot);
  }
}

function focused() {
  let element = document.activeElement;
  while (element && element.shadowRoot && element.shadowRoot.activeElement) element = element.shadowRoot.activeElement;
  return element;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = focused();
  const typing = at && (/^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName) || at.getAttribute("role") === "slider");
  if (typing) {
    if (event.key === "Escape") at.blur();
    return;
  }
  const steps = { ArrowRight: ["sample", 1], ArrowLeft: ["sample", -1], ArrowUp: ["k", 1], ArrowDown: ["k", -1] };
  if (event.key in steps) step(...steps[event.key]);
  else if (event.key === "/") for (const e of inside(document)) if (e.tagName === "INPUT" && e.getAttribute("aria-label") === LABELS.search) e.focus();
  if (event.key in steps || event.key === "/") event.preventDefault();
});

document.addEventListener("click", (event) => {
  const button = event.composedPath().find((e) => e.dataset && "sample" in e.dataset);
  const sample = model("sample");
  if (button && sample) sample.value = Number(button.dataset.sample);
});

function name_widgets() {
  for (const root of document.querySelectorAll("#page > *")) {
    const name = [...root.classList].find((c) => c.startsWith("at-"))?.slice(3);
    if (!(name in LABELS) || !root.shadowRoot) continue;
    for (const e of inside(root.shadowRoot))
      if (e.getAttribute("role") === "slider" || e.tagName === "INPUT") e.setAttribute("aria-label", LABELS[name]);
  }
}

async function begin() {
  const page = document.getElementById("page");
  const answer = await fetch("ready");
  if (!answer.ok) return;
  const script = document.createElement("script");
  script.src = "app/autoload.js?resources=none&bokeh-autoload-element=page&bokeh-app-path=/app&bokeh-absolute-url=" + encodeURIComponent(location.origin + "/app");
  document.head.append(script);
  const timer = setInterval(() => {
    const panels = model("panels");
    if (!panels || !document.querySelector("#page > *")) return;
    name_widgets();
    if (panels.text === "" && model("k").visible) return;
    clearInterval(timer);
    document.getElementById("first").remove();
    page.removeAttribute("aria-busy");
    new MutationObserver(name_widgets).observe(page, { childList: true, subtree: true });
  }, WAIT);
}

begin();

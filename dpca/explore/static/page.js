// Parts of the page outside Bokeh's widgets: its start, keys, clicks on thumbnails, and names for screen readers.
"use strict";

const LABELS = { k: "number of components", slice: "slice of the volume", sample: "number of the sample", search: "search by name",
  projection: "maximum projection", split: "position of the split", actual: "one pixel of the screen for each pixel", compare: "compare",
  contrast: "contrast", colors: "colors", channel: "channel", limits: "values of black and white", order: "order of the samples" };
const WAIT = 100, ASKED = 5000;

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

// Moves by one sample, in the order that `tags` of the gallery states if samples are sorted or searched.
function walk(by) {
  const sample = model("sample"), order = model("gallery")?.tags;
  if (!sample) return;
  if (!order.length) return step("sample", by);
  const at = order.indexOf(sample.value), next = order[at < 0 ? 1 : at + by];
  if (next != null) sample.value = next;
}

// Goes to the next option of a selection.
function cycle(name) {
  const found = model(name);
  if (!found || !found.visible || found.disabled) return;
  const values = found.options.map((option) => option[0]);
  found.value = values[(values.indexOf(found.value) + 1) % values.length];
}

function toggle(name) {
  const found = model(name);
  if (found) found.active = !found.active;
}

function thumbnails() {
  return parts(".at-gallery", "[data-sample]");
}

function parts(widget, selector) {
  return [...(document.querySelector(widget)?.shadowRoot.querySelectorAll(selector) ?? [])];
}

// Calls a function now, and whenever Bokeh has drawn a widget again.
function drawn(name, call) {
  new MutationObserver(call).observe(document.querySelector(`.at-${name}`).shadowRoot, { childList: true, subtree: true });
  call();
}

// The thumbnail that has the focus. Bokeh replaces all of them when one is made.
let held = null;

// Marks the thumbnail of the current sample, and gives the focus back.
function mark() {
  const sample = model("sample");
  for (const e of thumbnails()) {
    if (Number(e.dataset.sample) === sample.value) e.setAttribute("aria-current", "true");
    else e.removeAttribute("aria-current");
    if (e.dataset.sample === held && document.activeElement === document.body) e.focus({ preventScroll: true });
  }
}

document.addEventListener("focusin", (event) => (held = event.composedPath()[0].dataset?.sample ?? null));

// Pictures at 100 % are scrolled together, and keep their place when another sample is shown.
const place = { left: 0, top: 0 };

function align() {
  const all = parts(".at-panels", ".scroll");
  for (const e of all) {
    e.scrollTo(place);
    e.addEventListener("scroll", () => {
      if (!e.isConnected) return; // it was replaced, and is at 0 then
      [place.left, place.top] = [e.scrollLeft, e.scrollTop];
      for (const other of all) if (other !== e) other.scrollTo(place);
    });
  }
}

function cut() {
  document.querySelector(".at-panels")?.style.setProperty("--split", `${model("split").value}%`);
}

// The split follows the pointer.
for (const kind of ["pointerdown", "pointermove"])
  document.addEventListener(kind, (event) => {
    const frame = event.buttons & 1 && event.composedPath().find((e) => e.matches?.(".split .frame"));
    if (!frame) return;
    const { left, width } = frame.getBoundingClientRect();
    model("split").value = Math.round(Math.min(1, Math.max(0, (event.clientX - left) / width)) * 100);
    event.preventDefault();
  });
document.addEventListener("dragstart", (event) => event.preventDefault());

// The end of the eigenimages is in sight: there may be more.
let sight = null;

function look() {
  sight?.disconnect();
  const button = parts(".at-more", "button")[0];
  if (!button) return;
  sight = new IntersectionObserver((seen) => seen.some((e) => e.isIntersecting) && model("more").visible && button.click());
  sight.observe(button);
}

// Elements including those in shadow roots, where Bokeh puts its widgets.
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
  const keys = { c: () => cycle("compare"), z: () => toggle("actual"), b: () => cycle("contrast") };
  const steps = { ...keys, ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), ArrowUp: () => step("k", 1), ArrowDown: () => step("k", -1) };
  if (event.key in steps) steps[event.key]();
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
      if (e.getAttribute("role") === "slider" || e.tagName === "INPUT" || e.tagName === "SELECT") e.setAttribute("aria-label", LABELS[name]);
      else if (e.classList.contains("bk-spin-btn")) e.setAttribute("aria-hidden", "true"), (e.tabIndex = -1); // the arrow keys do the same
  }
}

// Axes are drawn on a canvas, and style sheets do not apply to a canvas.
const dark = matchMedia("(prefers-color-scheme: dark)");

function color_axes() {
  const chart = model("variance"), color = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
  for (const axis of [...chart.below, ...chart.left])
    for (const part of ["axis_label_text_color", "major_label_text_color", "axis_line_color", "major_tick_line_color"]) axis[part] = color;
}

// Shows a message when the program has ended, because the page is no longer updated then.
async function ask() {
  const answers = await fetch("ready").then((answer) => answer.ok, () => false);
  document.getElementById("ended").hidden = answers;
}

async function begin() {
  const page = document.getElementById("page");
  const answer = await fetch("ready");
  if (!answer.ok) return;
  const script = document.createElement("script");
  script.src = "app/autoload.js?resources=none&bokeh-autoload-element=page&bokeh-app-path=/app&bokeh-absolute-url=" + encodeURIComponent(location.origin + "/app");
  document.head.append(script);
  const timer = setInterval(() => {
    const panels = model("panels"), alert = model("alert");
    if (!alert || !document.querySelector("#page > *")) return;
    name_widgets();
    if (panels && panels.text === "" && !alert.visible) return;
    clearInterval(timer);
    setInterval(ask, ASKED);
    document.getElementById("first").remove();
    page.removeAttribute("aria-busy");
    color_axes();
    dark.addEventListener("change", color_axes);
    const sample = model("sample");
    if (sample) {
      sample.properties.value.change.connect(mark);
      model("split").properties.value.change.connect(cut);
      cut();
      drawn("gallery", mark);
      drawn("panels", align);
    }
    for (const name of ["panels", "quality", "gallery", "eigenimages"])
      model(name)?.properties.css_classes.change.connect(() =>
        document.querySelector(`.at-${name}`).setAttribute("aria-busy", model(name).css_classes.includes("busy")));
    drawn("eigenimages", look);
    new MutationObserver(name_widgets).observe(page, { childList: true, subtree: true });
  }, WAIT);
}

begin();

"use strict";
// Elements, numbers and the tooltip. Text goes in as text, never as markup.

// The namespace of SVG, asked of the parser: the page names no address.
const SVG = (() => {
  const template = document.createElement("template");
  template.innerHTML = "<svg></svg>";
  return template.content.firstChild.namespaceURI;
})();

function add(parent, child) {
  if (child === null || child === undefined) return;
  if (Array.isArray(child)) {
    for (const part of child) add(parent, part);
  } else {
    parent.append(child);
  }
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  add(made, children);
  return made;
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  add(made, children);
  return made;
}

// In the unit of `most`, by default of the value itself. Values that are
// compared share a unit.
function scaled(value, base, units, digits, most = value) {
  let unit = 0;
  while (Math.abs(most) >= base && unit + 1 < units.length) {
    value /= base;
    most /= base;
    ++unit;
  }
  return value.toFixed(unit === 0 && Number.isInteger(value) ? 0 : digits) +
         " " + units[unit];
}

function showBytes(value, most) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], 1, most);
}

function showFlops(value, most) {
  return scaled(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 2,
                most);
}

function showMicroseconds(value, most) {
  return scaled(value, 1000, ["\u00b5s", "ms", "s"], 2, most);
}

function showValue(value, unit, most) {
  if (unit === "bytes") return showBytes(value, most);
  if (unit === "us") return showMicroseconds(value, most);
  if (unit === "flops") return showFlops(value, most);
  return Number.isInteger(value) ? String(value) : value.toPrecision(4);
}

// Pixels between the margins of the page.
function pageWidth() {
  return Math.max(800, (document.body.clientWidth || 1500) - 48);
}

const tip = element("div", {id: "tip"});

// Shows what `text()` returns while the pointer is over `target`.
function hint(target, text) {
  target.addEventListener("mousemove", (event) => {
    tip.textContent = text();
    tip.style.display = "block";
    const width = tip.offsetWidth;
    const height = tip.offsetHeight;
    const x = Math.min(event.clientX + 14, window.innerWidth - width - 8);
    const y = event.clientY + 18 + height > window.innerHeight ?
        event.clientY - height - 12 : event.clientY + 18;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, y) + "px";
  });
  target.addEventListener("mouseleave", () => {
    tip.style.display = "none";
  });
  return target;
}

const SERIES = ["#9aa1b0", "#2f6bd8", "#e07f2f", "#4f9d69", "#a552b5"];

function legend(entries) {
  return element("div", {class: "legend"}, entries.map(
      ([name, colour]) => element("span", {},
          element("span", {class: "swatch", style: "background:" + colour}),
          name)));
}

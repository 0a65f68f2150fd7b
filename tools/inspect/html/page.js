"use strict";
// Draws the sections of the page's data, in order, as wide as the window.

const DRAW = {
  bars: drawBars, graph: drawGraph, groups: drawGroups, memory: drawMemory,
  memory_map: drawMemoryMap, pictures: drawPictures, table: drawTable, tiles: drawTiles,
};

const page = JSON.parse(document.getElementById("data").textContent);

function drawSections(sections, heading) {
  return sections.map((section) => [
    section.title ? element(heading, {}, section.title) : null,
    section.note ? element("p", {}, section.note) : null,
    DRAW[section.kind](section),
  ]);
}

function drawPage() {
  document.body.replaceChildren(tip, element("h1", {}, page.title));
  if (page.lead) add(document.body, element("p", {class: "lead"}, page.lead));
  add(document.body, drawSections(page.sections, "h2"));
}

drawPage();
let drawnWidth = pageWidth();
window.addEventListener("resize", () => {
  if (pageWidth() === drawnWidth) return;
  drawnWidth = pageWidth();
  drawPage();
});

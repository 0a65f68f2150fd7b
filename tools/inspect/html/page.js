"use strict";
// Draws the sections of the page's data, in order, as wide as the window.

const DRAW = {
  bars: drawBars, graph: drawGraph, memory: drawMemory,
  memory_map: drawMemoryMap, pictures: drawPictures, table: drawTable, tiles: drawTiles,
};

const page = JSON.parse(document.getElementById("data").textContent);

function drawPage() {
  const parts = [tip, element("h1", {}, page.title)];
  if (page.lead) parts.push(element("p", {class: "lead"}, page.lead));
  for (const section of page.sections) {
    if (section.title) parts.push(element("h2", {}, section.title));
    if (section.note) parts.push(element("p", {}, section.note));
    parts.push(DRAW[section.kind](section));
  }
  document.body.replaceChildren(...parts);
}

drawPage();
let drawnWidth = pageWidth();
window.addEventListener("resize", () => {
  if (pageWidth() === drawnWidth) return;
  drawnWidth = pageWidth();
  drawPage();
});

"use strict";
// Draws the sections of the page's data, in order.

const DRAW = {
  bars: drawBars, graph: drawGraph, memory: drawMemory,
  memory_map: drawMemoryMap, pictures: drawPictures, table: drawTable, tiles: drawTiles,
};

const page = JSON.parse(document.getElementById("data").textContent);
document.body.append(element("h1", {}, page.title));
if (page.lead) document.body.append(element("p", {class: "lead"}, page.lead));
for (const section of page.sections) {
  if (section.title) document.body.append(element("h2", {}, section.title));
  if (section.note) document.body.append(element("p", {}, section.note));
  document.body.append(DRAW[section.kind](section));
}

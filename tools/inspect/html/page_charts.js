"use strict";
// Tiles, pictures, tables and bars.

function drawTiles(section) {
  return element("div", {class: "tiles"}, section.tiles.map(
      (tile) => element("div", {class: "tile"},
          element("div", {class: "what"}, tile.what),
          element("div", {class: "value"}, tile.value),
          element("div", {class: "detail"}, tile.detail))));
}

function drawPictures(section) {
  return element("div", {class: "pictures"}, section.pictures.map(
      (picture) => element("figure", {title: picture.detail},
          element("img", {src: picture.source, alt: picture.detail}),
          element("figcaption", {}, picture.caption))));
}

function drawTable(section) {
  const numeric = section.head.map((_, column) => section.rows.length > 0 &&
      section.rows.every((row) => typeof row[column] === "number" ||
                                  /^[-+]?[0-9.]/.test(row[column]) ||
                                  row[column] === ""));
  const kind = (column) => numeric[column] ? "number" : "text";
  const body = element("tbody");
  const fill = (count) => {
    body.replaceChildren(...section.rows.slice(0, count).map(
        (row) => element("tr", {}, row.map((cell, column) => element(
            "td", {class: kind(column)}, String(cell))))));
  };
  fill(section.shown);
  const table = element("table", {},
      element("thead", {}, element("tr", {}, section.head.map(
          (title, column) => element("th", {class: kind(column)}, title)))),
      body);
  if (section.rows.length <= section.shown) return table;
  const more = element("button", {onclick: () => {
    fill(section.rows.length);
    more.remove();
  }}, "show all " + section.rows.length + " rows");
  return element("div", {}, table, more);
}

function drawBars(section) {
  const left = 230;
  const width = 760;
  const bar = 15;
  const gap = 12;
  const most = Math.max(1e-12, ...section.values.flat());
  const group = bar * section.series.length + gap;
  const svg = shape("svg", {
    width: left + width + 110, height: group * section.labels.length + 4,
  });
  section.labels.forEach((label, i) => {
    const y = i * group + 4;
    svg.append(shape("text", {
      x: left - 8, y: y + bar * section.series.length / 2 + 4,
      "text-anchor": "end",
    }, label));
    section.values[i].forEach((value, s) => {
      const length = value / most * width;
      const top = y + s * bar;
      const box = shape("rect", {
        x: left, y: top, width: Math.max(length, 0.5), height: bar - 2, rx: 2,
        fill: SERIES[s % SERIES.length],
      });
      hint(box, () => label + ", " + section.series[s] + ": " +
                      showValue(value, section.unit));
      svg.append(box, shape("text", {
        x: left + length + 5, y: top + bar - 4, class: "faint",
      }, showValue(value, section.unit)));
    });
  });
  return element("div", {},
      legend(section.series.map((name, s) => [name, SERIES[s]])), svg);
}

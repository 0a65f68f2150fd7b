"use strict";
// Tiles, pictures, tables, groups and bars.

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

const UNITS = {
  k: 1e3, M: 1e6, G: 1e9, T: 1e12, "\u00b5s": 1e-6, ms: 1e-3, KiB: 1024,
  MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4,
};

// The number of a cell such as "3.2 MiB"; undefined for other text.
function cellNumber(cell) {
  if (typeof cell === "number") return cell;
  const parts = /^([-+]?[0-9.]+(?:e[-+]?[0-9]+)?) ?(\S*)/.exec(cell);
  return parts === null ? undefined : parts[1] * (UNITS[parts[2]] || 1);
}

// The rows in the order that was clicked (drawHead). Numbers descend first,
// since the largest are of interest.
function sortedRows(rows, section, cells = (row) => row) {
  if (section.column === undefined) return rows;
  const order = (a, b) => {
    const x = cellNumber(cells(a)[section.column]);
    const y = cellNumber(cells(b)[section.column]);
    if (x !== undefined && y !== undefined) return y - x;
    if (x !== undefined || y !== undefined) return x !== undefined ? -1 : 1;
    return String(cells(a)[section.column]).localeCompare(
        String(cells(b)[section.column]));
  };
  return [...rows].sort(
      (a, b) => section.turns % 2 === 1 ? order(a, b) : order(b, a));
}

// A row of titles. A click on one sorts by its column, a second click the other
// way round: calls `fill` with the column and the number of clicks. They are
// kept in the section, since the page is drawn again if its width changes.
function drawHead(section, kind, fill) {
  return element("tr", {}, section.head.map((title, c) => element("th", {
    class: kind(c) + " sorts", title: "sort",
    onclick: () => {
      section.turns = c === section.column ? section.turns + 1 : 1;
      section.column = c;
      fill();
    },
  }, title)));
}

function drawTable(section) {
  const numeric = section.head.map((_, column) => section.rows.length > 0 &&
      section.rows.every((row) => row[column] === "" ||
                                  cellNumber(row[column]) !== undefined));
  const kind = (column) => numeric[column] ? "number" : "text";
  const body = element("tbody");
  const more = element("button", {onclick: () => {
    section.shown = section.rows.length;
    fill();
  }}, "show all " + section.rows.length + " rows");
  const fill = () => {
    const found = section.rows.filter(
        (row) => row.join("\n").toLowerCase().includes(section.words || ""));
    body.replaceChildren(
        ...sortedRows(found, section).slice(0, section.shown).map(
            (row) => element("tr", {}, row.map((cell, c) => element(
                "td", {class: kind(c)}, String(cell))))));
    more.style.display = found.length > section.shown ? "" : "none";
  };
  fill();
  const table = element("div", {class: "wide"}, element("table", {},
      element("thead", {}, drawHead(section, kind, fill)), body));
  if (section.rows.length <= 12) return element("div", {}, table, more);
  const filter = element("input", {
    type: "search", placeholder: "filter " + section.rows.length + " rows",
    value: section.words || "",
    oninput: (event) => {
      section.words = event.target.value.toLowerCase();
      fill();
    },
  });
  return element("div", {}, filter, table, more);
}

// A bar of one part per series, `total` being as wide as its column.
function drawBar(section, values, total) {
  return element("div", {class: "strip"}, values.map((value, s) => hint(
      element("div", {
        style: "width:" + 100 * value / total + "%;background:" +
               SERIES[(s + 1) % SERIES.length],
      }),
      () => section.series[s] + ": " +
            showValue(value, section.unit, Math.max(...values)))));
}

// Rows that open into sections when their name is clicked.
function drawGroups(section) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const total = Math.max(
      1e-12, ...section.groups.map((group) => sum(group.bar)));
  const toggle = (row, group) => {
    if (row.classList.toggle("open")) {
      openRows.add(String(group.cells[0]));
      row.after(element("tr", {}, element(
          "td", {colspan: group.cells.length + 1},
          drawSections(group.sections, "h3"))));
    } else {
      openRows.delete(String(group.cells[0]));
      row.nextSibling.remove();
    }
  };
  const body = element("tbody");
  const fill = () => {
    body.replaceChildren();
    for (const group of sortedRows(section.groups, section,
                                   ({cells}) => cells)) {
      const row = element("tr", {}, group.cells.map((cell, c) => element(
          "td", c > 0 ? {class: "number"} :
                        {class: "name", onclick: () => toggle(row, group)},
          String(cell))), element("td", {class: "bar"},
                                  drawBar(section, group.bar, total)));
      body.append(row);
      if (openRows.has(String(group.cells[0]))) toggle(row, group);
    }
  };
  fill();
  const head = drawHead(section, (c) => c > 0 ? "number" : "text", fill);
  head.append(element("th"));
  return element("div", {},
      section.series.length < 2 ? null : legend(section.series.map(
          (name, s) => [name, SERIES[(s + 1) % SERIES.length]])),
      element("table", {class: "groups"}, element("thead", {}, head), body));
}

function drawBars(section) {
  const left = 230;
  const width = pageWidth() - left - 90;
  const bar = 15;
  const gap = 12;
  const most = Math.max(1e-12, ...section.values.flat());
  const group = bar * section.series.length + gap;
  const svg = shape("svg", {
    width: left + width + 90, height: group * section.labels.length + 4,
  });
  section.labels.forEach((label, i) => {
    const y = i * group + 4;
    svg.append(shape("text", {
      x: left - 8, y: y + bar * section.series.length / 2 + 4,
      "text-anchor": "end",
    }, label));
    const largest = Math.max(...section.values[i]);
    section.values[i].forEach((value, s) => {
      const length = value / most * width;
      const top = y + s * bar;
      const box = shape("rect", {
        x: left, y: top, width: Math.max(length, 0.5), height: bar - 2, rx: 2,
        fill: SERIES[s % SERIES.length],
      });
      hint(box, () => label + ", " + section.series[s] + ": " +
                      showValue(value, section.unit, largest));
      svg.append(box, shape("text", {
        x: left + length + 5, y: top + bar - 4, class: "faint",
      }, showValue(value, section.unit, largest)));
    });
  });
  return element("div", {},
      legend(section.series.map((name, s) => [name, SERIES[s]])), svg);
}

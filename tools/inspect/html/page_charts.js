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

// Numbers descend first, since the largest are of interest.
function sortedRows(rows, column, turns) {
  if (column < 0) return rows;
  const order = (a, b) => {
    const x = cellNumber(a[column]);
    const y = cellNumber(b[column]);
    if (x !== undefined && y !== undefined) return y - x;
    if (x !== undefined || y !== undefined) return x !== undefined ? -1 : 1;
    return String(a[column]).localeCompare(String(b[column]));
  };
  return [...rows].sort((a, b) => turns % 2 === 1 ? order(a, b) : order(b, a));
}

// A click on a title sorts by its column, a second one the other way round.
function drawTable(section) {
  const numeric = section.head.map((_, column) => section.rows.length > 0 &&
      section.rows.every((row) => row[column] === "" ||
                                  cellNumber(row[column]) !== undefined));
  const kind = (column) => numeric[column] ? "number" : "text";
  const body = element("tbody");
  let column = -1;
  let turns = 0;  // clicks on the title of the column
  let words = "";
  let shown = section.shown;
  const more = element("button", {onclick: () => {
    shown = section.rows.length;
    fill();
  }}, "show all " + section.rows.length + " rows");
  const fill = () => {
    const found = section.rows.filter(
        (row) => row.join("\n").toLowerCase().includes(words));
    body.replaceChildren(
        ...sortedRows(found, column, turns).slice(0, shown).map(
            (row) => element("tr", {}, row.map((cell, c) => element(
                "td", {class: kind(c)}, String(cell))))));
    more.style.display = found.length > shown ? "" : "none";
  };
  fill();
  const table = element("table", {},
      element("thead", {}, element("tr", {}, section.head.map(
          (title, c) => element("th", {
            class: kind(c) + " sorts", title: "sort",
            onclick: () => {
              turns = c === column ? turns + 1 : 1;
              column = c;
              fill();
            },
          }, title)))),
      body);
  if (section.rows.length <= 12) return element("div", {}, table, more);
  const filter = element("input", {
    type: "search", placeholder: "filter " + section.rows.length + " rows",
    oninput: (event) => {
      words = event.target.value.toLowerCase();
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
      row.after(element("tr", {}, element(
          "td", {colspan: group.cells.length + 1},
          drawSections(group.sections, "h3"))));
    } else {
      row.nextSibling.remove();
    }
  };
  const body = element("tbody");
  for (const group of section.groups) {
    const row = element("tr", {}, group.cells.map((cell, c) => element(
        "td", c > 0 ? {class: "number"} :
                      {class: "name", onclick: () => toggle(row, group)},
        String(cell))), element("td", {class: "bar"},
                                drawBar(section, group.bar, total)));
    body.append(row);
    if (openRows.has(String(group.cells[0]))) toggle(row, group);
  }
  const head = element("tr", {}, section.head.map((title, c) => element(
      "th", {class: c > 0 ? "number" : "text"}, title)), element("th"));
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

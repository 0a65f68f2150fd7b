"use strict";
// Tiles, tables, bars and the memory timeline.

function drawTiles(section) {
  return element("div", {class: "tiles"}, section.tiles.map(
      (tile) => element("div", {class: "tile"},
          element("div", {class: "what"}, tile.what),
          element("div", {class: "value"}, tile.value),
          element("div", {class: "detail"}, tile.detail))));
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

// Bytes live after each step, one curve a variant; x is the share of the steps
// done, so that schedules of different lengths lie over each other.
function drawMemory(section) {
  const left = 80;
  const width = 1000;
  const height = 260;
  const most = Math.max(...section.variants.map((v) => v.peak)) * 1.06;
  const svg = shape("svg", {width: left + width + 20, height: height + 40});
  const y = (bytes) => 10 + height - bytes / most * height;
  for (let i = 0; i <= 4; ++i) {
    const bytes = most / 1.06 * i / 4;
    svg.append(shape("line", {
      x1: left, x2: left + width, y1: y(bytes), y2: y(bytes),
      stroke: "#e4e7ee",
    }), shape("text", {
      x: left - 6, y: y(bytes) + 4, "text-anchor": "end", class: "faint",
    }, showBytes(bytes)));
  }
  svg.append(shape("text", {x: left, y: height + 32, class: "faint"},
                   "first kernel of the step"),
             shape("text", {x: left + width, y: height + 32,
                            "text-anchor": "end", class: "faint"},
                   "last kernel"));
  section.variants.forEach((variant, v) => {
    const colour = SERIES[v % SERIES.length];
    const count = variant.live.length;
    const x = (step) => left + step / count * width;
    let path = "M" + x(0) + " " + y(0);
    variant.live.forEach((bytes, i) => {
      path += "L" + x(i).toFixed(1) + " " + y(bytes).toFixed(1) +
              "H" + x(i + 1).toFixed(1);
    });
    svg.append(shape("path", {
      d: path + "L" + x(count) + " " + y(0), fill: colour,
      "fill-opacity": 0.13, stroke: colour, "stroke-width": 1.6,
    }));
    const top = variant.live.indexOf(Math.max(...variant.live));
    const mark = shape("circle", {
      cx: x(top + 0.5), cy: y(variant.live[top]), r: 6, fill: colour,
      stroke: "#fff", "stroke-width": 2,
    });
    hint(mark, () => describeLive(variant, top, 25));
    svg.append(mark, shape("text", {
      x: x(top + 0.5) + 10, y: y(variant.live[top]) - 4, fill: colour,
    }, variant.name + " peak " + showBytes(variant.live[top])));
  });
  const probe = shape("rect", {
    x: left, y: 10, width: width, height: height, fill: "transparent",
  });
  let at = 0;
  probe.addEventListener("mousemove", (event) => {
    const box = probe.getBoundingClientRect();
    at = Math.min(0.9999, Math.max(0, (event.clientX - box.left) / box.width));
  });
  hint(probe, () => section.variants.map((variant) => describeLive(
      variant, Math.floor(at * variant.live.length), 6)).join("\n\n"));
  svg.insertBefore(probe, svg.firstChild);
  return element("div", {},
      legend(section.variants.map((v, i) => [
        v.name + ": planned " + showBytes(v.peak) + ", lower bound " +
            showBytes(v.bound), SERIES[i]])), svg);
}

// The greatest buffers that are live at a step.
function describeLive(variant, step, count) {
  const live = variant.buffers.filter(
      (buffer) => buffer.first <= step && step <= buffer.last);
  live.sort((a, b) => b.bytes - a.bytes);
  const lines = live.slice(0, count).map(
      (buffer) => showBytes(buffer.bytes).padStart(10) + "  " + buffer.name +
                  (buffer.loc ? "  (" + buffer.loc + ")" : ""));
  if (live.length > count) {
    lines.push("and " + (live.length - count) + " more");
  }
  return variant.name + ", step " + (step + 1) + " of " +
         variant.live.length + ", " + variant.steps[step] + "\n" +
         showBytes(variant.live[step]) + " live in " + live.length +
         " buffers\n" + lines.join("\n");
}

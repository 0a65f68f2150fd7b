"use strict";
// The map of a graph: rows are parts of the model, columns the phases of a
// step, chips the nodes, in the order in which they run. With times, the width
// of a chip is its time, and nodes too short to be seen share one chip at the
// end of the strip, as wide as their total time. A row opens into the graph of
// its nodes.

const KINDS = [
  ["matrix", "convolution, matmul"], ["fusion", "fusion"],
  ["kernel", "kernel of one op"], ["library", "other library call"],
  ["copy", "copy"], ["op", "op"], ["short", "short steps, in total"],
];

const NARROW = 3;  // pixels; nodes below share a chip
const NAME = 150;  // pixels of the first column
const TAG = 22;    // pixels of a variant's letter
const PADDING = 16;  // pixels, left and right of a cell

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";  // of variants

const PLAIN_WIDTH = {matrix: 26, library: 16, kernel: 9, copy: 9, op: 9};

function plainWidth(node) {
  if (node.kind !== "fusion") return PLAIN_WIDTH[node.kind];
  return Math.min(64, 16 + 2 * node.body.length);
}

function describeNode(node) {
  const lines = [node.op + " %" + node.name + (node.loc ? "  " + node.loc : "")];
  if (node.source) lines.push(node.source);
  if (node.body) lines.push(node.ops);
  lines.push(node.types.slice(0, 6).join("  ") +
             (node.types.length > 6 ? "  \u2026" : ""));
  let cost = "moves " + showBytes(node.bytes);
  if (node.flops > 0) cost += ", " + showFlops(node.flops);
  if (node.us !== undefined) cost += ", " + showMicroseconds(node.us);
  lines.push(cost);
  if (node.kernel) lines.push("kernel " + node.kernel);
  return lines.join("\n");
}

// Names of a node's operands, with where they come from.
function describeOperands(node, graph) {
  const names = [...new Set(node.in)].map((id) => {
    if (id < 0) return graph.inputs[-1 - id].name;
    const from = graph.nodes[id];
    return "%" + from.name + (from.loc ? " (" + from.loc + ")" : "");
  });
  const shown = names.slice(0, 8).join(", ");
  return "reads " + shown + (names.length > 8 ? ", \u2026" : "");
}

// At first the rows that the address names, "#layer1.0,fc". Kept when the page
// is drawn again.
const openRows = new Set(
    decodeURIComponent(location.hash.slice(1)).split(","));

class GraphMap {
  constructor(section) {
    this.variants = section.variants;
    this.rows = [];
    this.columns = [];
    for (const {graph} of this.variants) {
      this.merge(this.rows, graph.rows);
      this.merge(this.columns, graph.columns);
    }
    this.chips = this.variants.map(() => new Map());
    this.cells = new Map();
    this.variants.forEach(({graph}, v) => {
      for (const node of graph.nodes) {
        const key = this.key(v, graph.rows[node.row],
                             graph.columns[node.col]);
        if (!this.cells.has(key)) this.cells.set(key, []);
        this.cells.get(key).push(node);
      }
    });
    this.timed = this.variants.every(({graph}) => graph.nodes.some(
        (node) => node.us !== undefined));
    this.setScale();
  }

  key(variant, row, column) { return variant + "/" + column + "/" + row; }

  // Adds the names that are missing, each after the one it follows.
  merge(names, more) {
    more.forEach((name, i) => {
      if (names.includes(name)) return;
      const before = i === 0 ? -1 : names.indexOf(more[i - 1]);
      names.splice(before + 1, 0, name);
    });
  }

  // Columns are as wide as their longest strip, the whole as the page. A column
  // has room for its title.
  setScale() {
    const longest = this.columns.map((column) => Math.max(...this.rows.map(
        (row) => Math.max(...this.variants.map((_, v) => {
          const nodes = this.cells.get(this.key(v, row, column)) || [];
          return nodes.reduce((sum, node) => sum + this.weight(node), 0);
        })))));
    const fixed = 8 + (this.variants.length > 1 ? TAG : 0);
    let room = pageWidth() - NAME - PADDING -
        this.columns.length * (fixed + PADDING);
    const least = Math.min(this.timed ? 150 : 90, room / this.columns.length);
    let sum = longest.reduce((a, b) => a + b, 0);
    // The longest column comes last, so that narrow ones leave their room.
    for (const length of [...longest].sort((a, b) => a - b)) {
      const width = Math.max(least, length / sum * room);
      this.pixels = Math.min(width / length, this.timed ? Infinity : 1);
      room -= width;
      sum -= length;
    }
    this.widths = longest.map(
        (length) => Math.max(least, length * this.pixels) + fixed);
  }

  // A view of another value is no step, and takes no time.
  shows(node) { return !this.timed || node.us !== undefined; }

  weight(node) { return this.timed ? (node.us || 0) : plainWidth(node); }

  draw() {
    const head = element("tr", {},
        element("th", {style: "width:" + NAME + "px"}, "part of the model"),
        this.columns.map((column, c) => element(
            "th", {style: "width:" + Math.round(this.widths[c]) + "px"},
            column + this.totals(c))));
    const body = element("tbody", {}, head);
    for (const row of this.rows) {
      const line = this.drawRow(row);
      body.append(line);
      if (openRows.has(row)) this.toggle(line, row);
    }
    const present = new Set(this.variants.flatMap(
        ({graph}) => graph.nodes.filter((node) => this.shows(node)).map(
            (node) => this.isShort(node) ? "short" : node.kind)));
    const colours = element("div", {class: "legend"}, KINDS.filter(
        ([kind]) => present.has(kind)).map(([kind, text]) => element(
            "span", {}, element("span", {class: "swatch " + kind}), text)));
    const names = this.variants.length > 1 ? element(
        "div", {class: "legend"}, this.variants.map(({name}, v) => element(
            "span", {}, element("b", {}, LETTERS[v]), name))) : null;
    return element("div", {}, names, colours,
                   element("table", {class: "map"}, body));
  }

  // Time that each variant spends in a phase. All phases share a unit.
  totals(column) {
    if (!this.timed) return "";
    const sums = this.columns.map((name) => this.variants.map((_, v) => {
      let sum = 0;
      for (const row of this.rows) {
        const nodes = this.cells.get(this.key(v, row, name)) || [];
        for (const node of nodes) sum += this.weight(node);
      }
      return sum;
    }));
    const most = Math.max(...sums.flat());
    return ": " + sums[column].map(
        (sum) => showMicroseconds(sum, most)).join(" \u2192 ");
  }

  drawRow(row) {
    const line = element("tr", {}, element(
        "td", {class: "name", onclick: () => this.toggle(line, row)},
        row || "(no location)"));
    for (const column of this.columns) {
      const cell = element("td");
      this.variants.forEach(({name}, v) => {
        const nodes = this.cells.get(this.key(v, row, column)) || [];
        const strip = element("div", {class: "strip"});
        if (this.variants.length > 1) {
          strip.append(element("span", {class: "tag", title: name},
                               nodes.length > 0 ? LETTERS[v] : ""));
        }
        const shown = nodes.filter((node) => this.shows(node));
        const short = shown.filter((node) => this.isShort(node));
        for (const node of shown) {
          if (!this.isShort(node)) strip.append(this.drawChip(node, v));
        }
        if (short.length > 0) strip.append(this.drawShort(short, v));
        cell.append(strip);
      });
      line.append(cell);
    }
    return line;
  }

  isShort(node) {
    return this.timed && this.weight(node) * this.pixels < NARROW;
  }

  // One chip for all short nodes of a strip.
  drawShort(nodes, v) {
    const total = nodes.reduce((sum, node) => sum + this.weight(node), 0);
    const width = total * this.pixels;
    const chip = element("span", {
      class: "chip short", style: "width:" + width.toFixed(2) + "px",
    });
    for (const node of nodes) this.chips[v].set(node.id, chip);
    const lines = nodes.slice(0, 12).map((node) =>
        node.op + " %" + node.name + ", " + showMicroseconds(node.us || 0));
    if (nodes.length > 12) lines.push("\u2026");
    return hint(chip, () => nodes.length + " short steps, " +
                            showMicroseconds(total) + " in total\n" +
                            lines.join("\n"));
  }

  drawChip(node, v) {
    const graph = this.variants[v].graph;
    const scaled = this.weight(node) * this.pixels;
    const width = this.timed ? scaled : Math.max(1.5, scaled);
    const chip = element("span", {
      class: "chip " + node.kind, style: "width:" + width.toFixed(2) + "px",
    });
    if (node.kind === "fusion" && width > 14) {
      const label = width > 6 * node.label.length + 8 ? node.label :
          node.body.length;
      chip.textContent = String(label);
    }
    this.chips[v].set(node.id, chip);
    const mark = (on) => {
      for (const id of node.in) this.mark(v, id, "reads", on);
      for (const other of graph.nodes) {
        if (other.in.includes(node.id)) this.mark(v, other.id, "read-by", on);
      }
    };
    chip.addEventListener("mouseenter", () => mark(true));
    chip.addEventListener("mouseleave", () => mark(false));
    return hint(chip, () => describeNode(node) + "\n" +
                            describeOperands(node, graph));
  }

  mark(v, id, name, on) {
    const chip = this.chips[v].get(id);
    if (chip) chip.classList.toggle(name, on);
  }

  toggle(line, row) {
    if (line.classList.toggle("open")) {
      openRows.add(row);
      const grid = element("div", {class: "detail-grid"});
      for (const column of this.columns) {
        this.variants.forEach(({name, graph}, v) => {
          const nodes = this.cells.get(this.key(v, row, column));
          if (!nodes) return;
          const caption = [name, column, nodes.length === 1 ? "1 node" :
              nodes.length + " nodes"].filter((part) => part).join(", ");
          const figure = element("figure", {});
          new NodeGraph(nodes, graph, figure, caption).draw();
          grid.append(figure);
        });
      }
      line.after(element("tr", {class: "detail"}, element(
          "td", {colspan: this.columns.length + 1}, grid)));
    } else {
      openRows.delete(row);
      line.nextSibling.remove();
    }
  }
}

// Nodes in layers, each below what it reads; fusions open on a click.
class NodeGraph {
  constructor(nodes, graph, figure, caption) {
    this.nodes = nodes;
    this.graph = graph;
    this.figure = figure;
    this.caption = caption;
    this.open = new Set();
  }

  draw() {
    const laid = this.layOut(this.nodes, "");
    const svg = shape("svg", {width: laid.width + 2, height: laid.height + 2});
    this.paint(svg, laid, 1, 1, this.graph);
    this.figure.replaceChildren(element("figcaption", {}, this.caption), svg);
  }

  // Sizes and places of the nodes of one level; `path` names the level.
  layOut(nodes, path) {
    const boxes = new Map();
    for (const node of nodes) {
      const key = path + "/" + node.id;
      const inner = node.body && this.open.has(key) ?
          this.layOut(node.body, key) : null;
      const title = node.kind === "fusion" && node.label === node.ops ?
          "fusion: " + node.label : node.label;
      const box = {node: node, key: key, inner: inner, title: title};
      box.width = inner ? Math.max(inner.width + 16, 120) :
          Math.min(230, Math.max(74, 6.4 * title.length + 16,
                                 6.4 * this.subtitle(node).length + 16));
      box.height = inner ? inner.height + 30 : 34;
      let layer = 0;
      for (const id of node.in) {
        if (boxes.has(id)) layer = Math.max(layer, boxes.get(id).layer + 1);
      }
      box.layer = layer;
      boxes.set(node.id, box);
    }
    return this.place(this.layers(boxes), boxes);
  }

  // A box without operands here stands just above its first reader.
  layers(boxes) {
    const reader = new Map();
    for (const box of boxes.values()) {
      for (const id of box.node.in) {
        if (!boxes.has(id)) continue;
        reader.set(id, Math.min(reader.get(id) ?? box.layer, box.layer));
      }
    }
    const layers = [];
    for (const [id, box] of boxes) {
      const first = !box.node.in.some((from) => boxes.has(from));
      if (first && reader.has(id)) box.layer = Math.max(0, reader.get(id) - 1);
      (layers[box.layer] = layers[box.layer] || []).push(box);
    }
    return Array.from(layers, (layer) => layer || []).filter(
        (layer) => layer.length > 0);
  }

  // Boxes of a layer stand in the order of what they read.
  place(layers, boxes) {
    let y = 0;
    let width = 0;
    for (const layer of layers) {
      for (const box of layer) {
        const above = box.node.in.filter((id) => boxes.has(id))
            .map((id) => boxes.get(id)).map((from) => from.x + from.width / 2);
        box.wish = above.length === 0 ? 0 :
            above.reduce((a, b) => a + b, 0) / above.length;
      }
      layer.sort((a, b) => a.wish - b.wish || a.node.id - b.node.id);
      let x = 0;
      for (const box of layer) {
        box.x = Math.max(x, box.wish - box.width / 2);
        box.y = y;
        x = box.x + box.width + 12;
      }
      width = Math.max(width, x - 12);
      y += Math.max(...layer.map((box) => box.height)) + 20;
    }
    return {boxes: boxes, width: Math.max(width, 60), height: Math.max(y - 20, 0)};
  }

  subtitle(node) {
    const text = node.loc && !node.body ? node.loc : "%" + node.name;
    return text.length > 34 ? "\u2026" + text.slice(-33) : text;
  }

  paint(svg, laid, left, top, scope) {
    for (const box of laid.boxes.values()) {
      for (const id of new Set(box.node.in)) {
        const from = laid.boxes.get(id);
        if (!from) continue;
        const x1 = left + from.x + from.width / 2;
        const y1 = top + from.y + from.height;
        const x2 = left + box.x + box.width / 2;
        const y2 = top + box.y;
        const bend = Math.min(40, (y2 - y1) / 2);
        svg.append(shape("path", {
          d: "M" + x1 + " " + y1 + "C" + x1 + " " + (y1 + bend) + " " + x2 +
             " " + (y2 - bend) + " " + x2 + " " + y2,
          fill: "none", stroke: "var(--edge)",
        }));
      }
    }
    for (const box of laid.boxes.values()) this.paintBox(svg, box, left, top,
                                                         scope);
  }

  paintBox(svg, box, left, top, scope) {
    const {node, key, inner} = box;
    const x = left + box.x;
    const y = top + box.y;
    const frame = shape("rect", {
      x: x, y: y, width: box.width, height: box.height, rx: 5,
      class: node.kind, "fill-opacity": inner ? 0.12 : 0.28,
      stroke: "var(--edge)",
    });
    const clip = (text, size) => {
      const most = Math.floor((box.width - 12) / size);
      return text.length > most ? text.slice(0, most - 1) + "\u2026" : text;
    };
    const group = shape("g", {
      style: node.body ? "cursor:pointer" : "",
      onclick: () => {
        if (!node.body) return;
        if (!this.open.delete(key)) this.open.add(key);
        this.draw();
      },
    }, frame, shape("text", {x: x + 7, y: y + 14},
                    clip(box.title, 6.3)));
    if (!inner) {
      group.append(shape("text", {x: x + 7, y: y + 28, class: "faint"},
                         clip(this.subtitle(node), 6.2)));
    }
    hint(group, () => describeNode(node) +
        (scope ? "\n" + describeOperands(node, scope) : "") +
        (node.body ? inner ? "\nclick to close" : "\nclick to open" : ""));
    svg.append(group);
    if (inner) this.paint(svg, inner, x + 8, y + 22, null);
  }
}

function drawGraph(section) { return new GraphMap(section).draw(); }

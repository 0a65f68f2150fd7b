"use strict";
// Memory over the schedule: how much is live, and where each buffer lies.

// Bytes live after each step, one curve a variant; x is the share of the steps
// done, so that schedules of different lengths lie over each other.
function drawMemory(section) {
  const left = 80;
  const width = pageWidth() - left - 20;
  const height = 260;
  const most = Math.max(...section.variants.map((v) => v.peak)) * 1.06;
  const svg = shape("svg", {width: left + width + 20, height: height + 40});
  const y = (bytes) => 10 + height - bytes / most * height;
  for (let i = 0; i <= 4; ++i) {
    const bytes = most / 1.06 * i / 4;
    svg.append(shape("line", {
      x1: left, x2: left + width, y1: y(bytes), y2: y(bytes),
      stroke: "var(--line)",
    }), shape("text", {
      x: left - 6, y: y(bytes) + 4, "text-anchor": "end", class: "faint",
    }, showBytes(bytes)));
  }
  svg.append(shape("text", {x: left, y: height + 32, class: "faint"},
                   "first kernel of the step"),
             shape("text", {x: left + width, y: height + 32,
                            "text-anchor": "end", class: "faint"},
                   "last kernel"));
  const labels = [];  // of peaks, so that one lies below the other
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
      stroke: "var(--paper)", "stroke-width": 2,
    });
    hint(mark, () => describeLive(variant, top, 25));
    const late = top > count / 2;
    const label = {x: x(top + 0.5) + (late ? -10 : 10),
                   y: y(variant.live[top]) - 4};
    while (labels.some((other) => Math.abs(other.x - label.x) < 300 &&
                                  Math.abs(other.y - label.y) < 15)) {
      label.y += 15;
    }
    labels.push(label);
    svg.append(mark, shape("text", {
      ...label, "text-anchor": late ? "end" : "start", fill: colour,
      stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke",
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

// Where in the model the value of a buffer is made, after its name.
function place(buffer) {
  const known = [buffer.loc, buffer.source].filter(Boolean);
  return known.length > 0 ? "  (" + known.join(", ") + ")" : "";
}

// The greatest buffers that are live at a step.
function describeLive(variant, step, count) {
  const live = variant.buffers.filter(
      (buffer) => buffer.first <= step && step <= buffer.last);
  live.sort((a, b) => b.bytes - a.bytes);
  const lines = live.slice(0, count).map(
      (buffer) => showBytes(buffer.bytes).padStart(10) + "  " + buffer.name +
                  place(buffer));
  if (live.length > count) {
    lines.push("and " + (live.length - count) + " more");
  }
  return variant.name + ", step " + (step + 1) + " of " +
         variant.live.length + ", " + variant.steps[step] + "\n" +
         showBytes(variant.live[step]) + " live in " + live.length +
         " buffers\n" + lines.join("\n");
}

// Where the buffers of one plan lie: a box as long as the buffer lives and as
// high as it is large, at its place in the arena.
function drawMemoryMap(section) {
  const view = section.view;
  const left = 80;
  const width = pageWidth() - left - 20;
  const height = 460;
  const count = Math.max(1, view.steps.length);
  const most = Math.max(1, view.peak);
  const x = (step) => left + step / count * width;
  const y = (bytes) => 10 + height - bytes / most * height;
  const top = view.live.indexOf(Math.max(...view.live));
  const atPeak = (buffer) => buffer.first <= top && top <= buffer.last;
  const svg = shape("svg", {width: left + width + 20, height: height + 40});
  for (let i = 0; i <= 4; ++i) {
    svg.append(shape("text", {
      x: left - 6, y: y(most * i / 4) + 4, "text-anchor": "end",
      class: "faint",
    }, showBytes(most * i / 4)));
  }
  svg.append(shape("rect", {
    x: left, y: 10, width: width, height: height, fill: "var(--area)",
    stroke: "var(--line)",
  }));
  for (const buffer of view.buffers) {
    const box = {
      x: x(buffer.first), y: y(buffer.offset + buffer.bytes),
      width: Math.max(0.6, x(buffer.last + 1) - x(buffer.first)),
      height: Math.max(0.4, y(0) - y(buffer.bytes)),
    };
    const frame = shape("rect", Object.assign({
      fill: atPeak(buffer) ? SERIES[1] : SERIES[0], "fill-opacity": 0.55,
      stroke: "var(--paper)", "stroke-width": 0.4,
    }, box));
    hint(frame, () => buffer.name + place(buffer)
        + "\n" + showBytes(buffer.bytes) + " at " + showBytes(buffer.offset)
        + "\nfrom step " + (buffer.first + 1) + ", " +
        view.steps[buffer.first] + "\nto step " + (buffer.last + 1) + ", " +
        view.steps[buffer.last]);
    svg.append(frame);
    const label = buffer.loc || buffer.name;
    if (box.height > 11 && box.width > 6.2 * label.length + 8) {
      svg.append(shape("text", {
        x: box.x + 4, y: box.y + box.height / 2 + 4,
        "pointer-events": "none",
      }, label));
    }
  }
  if (top >= 0) {
    svg.append(shape("line", {
      x1: x(top + 0.5), x2: x(top + 0.5), y1: 10, y2: 10 + height,
      stroke: SERIES[2], "stroke-width": 1.6, "pointer-events": "none",
    }));
  }
  svg.append(shape("text", {x: left, y: height + 32, class: "faint"},
                   "first kernel of the step"),
             shape("text", {x: left + width, y: height + 32,
                            "text-anchor": "end", class: "faint"},
                   "last kernel"));
  const peak = view.buffers.filter(atPeak).length;
  return element("div", {}, legend([
    [peak + " buffers that are live at the peak", SERIES[1]],
    [view.buffers.length - peak + " others", SERIES[0]],
    ["the peak: step " + (top + 1) + ", " + (view.steps[top] || "none"),
     SERIES[2]],
  ]), svg);
}

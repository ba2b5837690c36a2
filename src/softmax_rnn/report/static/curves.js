/* One figure as a chart: a panel per corpus or family, a curve per mechanism, the seeds as a band around it. */
(function (report) {
  "use strict";

  const SIZES = { full: { panel: 250, gap: 64 }, headline: { panel: 118, gap: 44 } };
  const NARROWEST = 290;
  const GAP = 62;
  const MARGIN = { l: 52, r: 22, t: 24, b: 42 };
  const SPLITS = { test: ["test"], train: ["train"], both: ["train", "test"] };

  /* Plotly reads a little HTML and %{...} in its texts; after this it shows them as they are. */
  const plain = (s) =>
    String(s ?? "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\{/g, "&#123;");

  const panels = (figure) => figure.panels || [];
  const curves = (panel) => panel.curves || [];
  const points = (curve, split) => (curve[split]?.x && curve[split].mean) || [];
  const drawn = (curve, split) => points(curve, split).some(report.finite);

  /* The legend's entries: one per label, whatever panels it is in. */
  function entries(figure) {
    const found = new Map();
    for (const panel of panels(figure))
      for (const curve of curves(panel)) {
        const entry = found.get(curve.label) || { ...curve, index: found.size, empty: true };
        entry.empty = entry.empty && !drawn(curve, "test") && !drawn(curve, "train");
        found.set(curve.label, entry);
      }
    return found;
  }

  /* The band as closed outlines, one for each stretch without a gap. */
  function outline(data) {
    const x = [], y = [];
    const close = (from, to) => {
      for (let i = from; i < to; i++) x.push(data.x[i]), y.push(data.low[i]);
      for (let i = to - 1; i >= from; i--) x.push(data.x[i]), y.push(data.high[i]);
      x.push(null), y.push(null);
    };
    let start = 0;
    for (let i = 0; i <= data.x.length; i++) {
      if (i < data.x.length && report.finite(data.low[i]) && report.finite(data.high[i])) continue;
      if (i - start > 1) close(start, i);
      start = i + 1;
    }
    return { x, y };
  }

  function spread(data, i) {
    const low = (data.low || [])[i], high = (data.high || [])[i];
    return report.finite(low) && report.finite(high) && low < high
      ? ` (${report.number(low, 3)}–${report.number(high, 3)})` : "";
  }

  function tracesOf(curve, entry, split, axis, both) {
    const data = curve[split], color = report.ink(entry.color, entry.index);
    const faded = both && split === "train";
    const width = entry.index ? 1.8 : 3.4; // the first, softmax, is seen below another that lies on it
    const name = plain(curve.label) + (both ? ` ${split}` : "");
    const place = { xaxis: "x" + axis, yaxis: "y" + axis, showlegend: false };
    const line = {
      ...place, type: "scatter", name, x: data.x, y: data.mean, opacity: faded ? 0.55 : 1,
      mode: points(curve, split).filter(report.finite).length < 8 ? "lines+markers" : "lines",
      line: { color, dash: curve.dash || "solid", width: faded ? width / 2 : width }, marker: { color, size: 6 },
      customdata: data.x.map((_, i) => spread(data, i)), hovertemplate: `${name} %{y:.3f}%{customdata}<extra></extra>`,
    };
    if (!data.low || !data.high || faded) return [line];
    const band = {
      ...place, ...outline(data), type: "scatter", mode: "lines", fill: "toself", hoverinfo: "skip",
      line: { width: 0 }, fillcolor: report.faint(color, 0.16),
    };
    return [band, line];
  }

  /* Numbers of tokens as 2M, everything else as it is: 0.003. */
  function xFormat(panel) {
    const format = panel.x_label === "tokens" ? "~s" : "~g";
    return { tickformat: format, hoverformat: format };
  }

  function axes(chart, layout, columns, rows, i) {
    const n = i ? i + 1 : "", width = chart.plot.clientWidth - MARGIN.l - MARGIN.r, gap = chart.size.gap;
    const height = chart.height - MARGIN.t - MARGIN.b;
    const column = i % columns, row = Math.floor(i / columns);
    const cell = { x: (width - GAP * (columns - 1)) / columns, y: (height - gap * (rows - 1)) / rows };
    const left = column * (cell.x + GAP), top = height - row * (cell.y + gap);
    const look = {
      gridcolor: report.css("--grid"), linecolor: report.css("--line"), zeroline: false, showline: true,
      tickfont: { size: 11 }, ticks: "outside", tickcolor: report.css("--line"), ticklen: 4,
    };
    const last = i + columns >= panels(chart.figure).length;
    layout["xaxis" + n] = {
      ...look, anchor: "y" + n, domain: [left / width, Math.min((left + cell.x) / width, 1)], nticks: 6, showgrid: false,
      type: panels(chart.figure)[i].x_scale || "linear", ...xFormat(panels(chart.figure)[i]), title: { text: last ? plain(panels(chart.figure)[i].x_label) : "", standoff: 8 },
    };
    layout["yaxis" + n] = {
      ...look, anchor: "x" + n, domain: [Math.max((top - cell.y) / height, 0), top / height], type: chart.axis, nticks: 6,
      title: { text: column ? "" : "loss", standoff: 6 },
    };
    layout.annotations.push({
      text: `<b>${plain(panels(chart.figure)[i].title)}</b>`, showarrow: false, xanchor: "left", yanchor: "bottom",
      xref: `x${n} domain`, yref: `y${n} domain`, x: 0, y: 1.01, font: { size: 12.5 },
    });
  }

  class Chart {
    constructor(holder, figure) {
      this.figure = figure;
      this.size = SIZES[holder.dataset.size] || SIZES.full;
      this.entries = entries(figure);
      this.hidden = new Set();
      this.axis = "log";
      const any = (split) => panels(figure).some((p) => curves(p).some((c) => drawn(c, split)));
      this.split = any("test") ? "test" : "train";
      this.plot = report.element("div", { class: "plot", role: "img" });
      const top = report.element("div", { class: "top" }), tools = report.element("div", { class: "tools" });
      if (any("test") && any("train")) tools.append(this.choice("loss", "split", ["test", "train", "both"]));
      tools.append(this.choice("axis", "axis", ["log", "linear"]));
      top.append(this.legend(), tools);
      holder.replaceChildren(top, this.plot);
    }

    /* A row of buttons, one of which is pressed. */
    choice(title, field, options) {
      const group = report.element("div", { class: "choice", role: "group", "aria-label": title });
      group.append(report.element("span", {}, title));
      const buttons = options.map((option) => {
        const button = report.element("button", { type: "button", "aria-pressed": this[field] === option }, option);
        button.addEventListener("click", () => {
          this[field] = option;
          buttons.forEach((b) => b.setAttribute("aria-pressed", b === button));
          this.draw();
        });
        return button;
      });
      group.append(...buttons);
      return group;
    }

    legend() {
      this.chips = new Map();
      const list = report.element("div", { class: "legend", role: "group", "aria-label": "curves" });
      for (const [label, entry] of this.entries) {
        const chip = report.element("button", { type: "button", title: entry.formula || "" });
        const sample = report.shape("svg", { width: 22, height: 8, "aria-hidden": "true" });
        sample.append(report.shape("path", { d: "M1 4H21", class: entry.dash || "solid" }));
        chip.append(sample, entry.empty ? `${label} (no runs)` : label);
        chip.disabled = entry.empty;
        chip.addEventListener("click", () => this.toggle(label));
        chip.addEventListener("dblclick", () => this.only(label));
        this.chips.set(label, chip);
        list.append(chip);
      }
      return list;
    }

    toggle(label) {
      if (!this.hidden.delete(label)) this.hidden.add(label);
      this.draw();
    }

    /* This curve alone; or all again, if it was alone already. */
    only(label) {
      const others = [...this.entries.keys()].filter((l) => l !== label);
      const alone = !this.hidden.has(label) && others.every((l) => this.hidden.has(l));
      this.hidden = new Set(alone ? [] : others);
      this.draw();
    }

    traces() {
      return panels(this.figure).flatMap((panel, i) =>
        curves(panel).filter((c) => !this.hidden.has(c.label)).flatMap((curve) =>
          SPLITS[this.split].filter((split) => drawn(curve, split)).flatMap((split) =>
            tracesOf(curve, this.entries.get(curve.label), split, i ? i + 1 : "", this.split === "both"))));
    }

    layout() {
      const count = panels(this.figure).length;
      this.columns = this.columnsThatFit();
      const rows = Math.ceil(count / this.columns);
      this.height = rows * this.size.panel + (rows - 1) * this.size.gap + MARGIN.t + MARGIN.b;
      this.plot.style.height = `${this.height}px`; // a height in the layout would be lost when Plotly follows the window
      const layout = {
        margin: MARGIN, annotations: [],
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified", autosize: true,
        font: { color: report.css("--ink"), family: "system-ui, sans-serif", size: 12 }, uirevision: this.split + this.axis,
        hoverlabel: { bgcolor: report.css("--card"), bordercolor: report.css("--line"), font: { size: 12, color: report.css("--ink") } },
        // A finger on a chart should scroll the page.
        dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
      };
      for (let i = 0; i < count; i++) axes(this, layout, this.columns, rows, i);
      return layout;
    }

    /* As few rows as fit, and then evenly filled: six panels are 3 + 3, not 4 + 2. */
    columnsThatFit() {
      const count = panels(this.figure).length, fit = Math.max(1, Math.floor(this.plot.clientWidth / NARROWEST));
      return Math.ceil(count / Math.ceil(count / fit));
    }

    draw() {
      for (const [label, chip] of this.chips) {
        const entry = this.entries.get(label);
        chip.setAttribute("aria-pressed", !entry.empty && !this.hidden.has(label));
        chip.querySelector("path").style.stroke = report.ink(entry.color, entry.index);
      }
      const shown = [...this.entries.keys()].filter((l) => !this.hidden.has(l)).join(", ");
      this.plot.setAttribute("aria-label", `${this.split} loss, ${this.axis} axis, of ${shown}`);
      const config = { responsive: true, displayModeBar: false, displaylogo: false };
      return window.Plotly.react(this.plot, this.traces(), this.layout(), config);
    }

    /* Plotly follows the width by itself; another number of columns is another layout. */
    follow() {
      new ResizeObserver(() => {
        if (this.columnsThatFit() !== this.columns) this.draw();
      }).observe(this.plot);
    }
  }

  report.Chart = Chart;
})(window.report);

/* Two charts of quality against cost. Moving the context moves the dots of keys and values; moving the memory moves the choice. */
(function (report) {
  "use strict";

  const data = JSON.parse(document.getElementById("frontier").textContent);
  const WIDTHS = { 4: 3, 8: 4.2, 16: 5.4, 32: 6.6 };
  const BOX = { left: 46, right: 12, top: 12, bottom: 34, height: 330 };
  const CONTEXTS = [16, 65536];
  const AXES = { bytes: "Memory", operations: "Work" };
  const state = { axis: "bytes", context: 1024, budget: 8192, hidden: new Set() };

  const at = (point, axis, context) => point[axis][0] + point[axis][1] * context;
  const bytes = (n) => {
    for (const unit of ["B", "KB", "MB"]) {
      if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
      n /= 1024;
    }
    return `${n.toFixed(1)} GB`;
  };
  const count = (n) => (n < 1e3 ? `${Math.round(n)}` : n < 1e6 ? `${+(n / 1e3).toPrecision(2)}k` : `${+(n / 1e6).toPrecision(2)}M`);
  const cost = (axis, n) => (axis === "bytes" ? bytes(n) : `${count(n)} operations`);
  const quality = (p) => (p.arena === "recall" ? `${(100 * p.mean).toFixed(0)}%` : p.mean.toFixed(3));
  const name = (p) => `${p.mechanism}, keys of ${p.key_dim}${p.conv ? ", convolution" : ""}`;
  const better = (a, b) => (a.arena === "recall" ? a.mean > b.mean : a.mean < b.mean);

  class Plot {
    constructor(arena) {
      this.arena = arena;
      this.holder = document.getElementById(`plot-${arena}`);
      this.words = document.getElementById(`words-${arena}`);
      this.points = data.points.filter((p) => p.arena === arena && report.finite(p.mean));
      new ResizeObserver(() => this.holder.clientWidth === this.width || this.draw()).observe(this.holder);
    }

    scales() {
      const costs = this.points.flatMap((p) => CONTEXTS.map((t) => at(p, state.axis, p.constant ? 1 : t)));
      const means = this.points.map((p) => p.mean);
      const low = Math.log2(Math.min(...costs)) - 0.4, high = Math.log2(Math.max(...costs)) + 0.4;
      const inner = this.width - BOX.left - BOX.right, tall = BOX.height - BOX.top - BOX.bottom;
      this.x = (n) => BOX.left + (inner * (Math.log2(Math.max(n, 2 ** low)) - low)) / (high - low);
      const accuracy = this.arena === "recall";
      const pad = 0.06 * (Math.max(...means) - Math.min(...means)) || 0.1;
      const [worst, best] = accuracy ? [-0.02, 1.03] : [Math.max(...means) + pad, Math.min(...means) - pad];
      this.y = (v) => BOX.top + (tall * (best - v)) / (best - worst);
      this.range = [low, high, worst, best];
    }

    grid() {
      const [low, high, worst, best] = this.range, marks = [], bottom = BOX.height - BOX.bottom;
      const room = Math.max(1, Math.ceil((high - low) / (this.width / 62)));
      for (let e = Math.ceil(low); e <= high; e += room) {
        const x = this.x(2 ** e);
        marks.push(report.shape("path", { class: "grid", d: `M${x} ${BOX.top}V${bottom}` }));
        const label = state.axis === "bytes" ? bytes(2 ** e) : count(2 ** e);
        marks.push(report.shape("text", { x, y: bottom + 16, "text-anchor": "middle" }, label));
      }
      const span = Math.abs(best - worst), step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((s) => span / s < 9) ?? 1;
      for (let v = Math.ceil(Math.min(worst, best) / step) * step; v <= Math.max(worst, best); v += step) {
        marks.push(report.shape("path", { class: "grid", d: `M${BOX.left} ${this.y(v)}H${this.width - BOX.right}` }));
        const label = this.arena === "recall" ? `${Math.round(100 * v)}%` : v.toFixed(step < 0.1 ? 2 : 1);
        marks.push(report.shape("text", { x: BOX.left - 6, y: this.y(v) + 4, "text-anchor": "end" }, label));
      }
      const axis = state.axis === "bytes" ? "state of a layer" : "operations for one more token, per layer";
      marks.push(report.shape("text", { x: this.width - BOX.right, y: BOX.height - 3, "text-anchor": "end" }, axis));
      return marks;
    }

    mark(p, index) {
      const color = report.ink(data.families[p.family], index), group = report.shape("g", {});
      const x = this.x(at(p, state.axis, state.context)), y = this.y(p.mean), r = WIDTHS[p.key_dim] ?? 5;
      const grows = p.constant ? "" : ` at ${count(state.context)} tokens of context`;
      group.append(report.shape("title", {}, `${name(p)}: ${quality(p)}, ${cost(state.axis, at(p, state.axis, state.context))}${grows}`));
      if (!p.constant) {
        const [a, b] = CONTEXTS.map((t) => this.x(at(p, state.axis, t)));
        group.append(report.shape("path", { d: `M${a} ${y}H${b}`, stroke: color, "stroke-width": r / 3, opacity: 0.6 }));
      }
      if (report.finite(p.low) && report.finite(p.high)) {
        const [a, b] = [p.low, p.high].map((v) => Math.min(Math.max(this.y(v), BOX.top), BOX.height - BOX.bottom));
        group.append(report.shape("path", { d: `M${x} ${a}V${b}`, stroke: color, opacity: 0.35 }));
      }
      const hollow = p.arena === "recall" && !p.conv;
      group.append(report.shape("circle", { cx: x, cy: y, r, fill: hollow ? report.css("--card") : color, stroke: color, "stroke-width": 1.4 }));
      return group;
    }

    /* The best that fits into the memory at this context. */
    choice() {
      const fits = this.points.filter((p) => !state.hidden.has(p.family) && at(p, "bytes", state.context) <= state.budget);
      return fits.reduce((best, p) => (best === null || better(p, best) ? p : best), null);
    }

    say(best) {
      const memory = bytes(state.budget), context = count(state.context);
      if (best === null) return `Nothing here fits into ${memory}.`;
      const size = bytes(at(best, "bytes", state.context));
      const kept = this.points.filter((p) => !p.constant && p.mechanism === "softmax").sort((a, b) => (better(a, b) ? -1 : 1))[0];
      const tokens = kept ? Math.floor((state.budget - kept.bytes[0]) / kept.bytes[1]) : 0;
      const limit = kept ? ` The best softmax (${quality(kept)}, keys of ${kept.key_dim}) fits up to ${count(Math.max(tokens, 0))} tokens.` : "";
      return `With ${memory} for a layer and ${context} tokens of context: ${name(best)}, ${quality(best)}, in ${size}.${limit}`;
    }

    draw() {
      if (this.holder.clientWidth < 120) return;
      this.width = this.holder.clientWidth;
      if (!this.points.length) {
        this.words.textContent = "Not run yet.";
        return;
      }
      this.scales();
      const label = `Quality against ${AXES[state.axis].toLowerCase()}, ${this.points.length} models`;
      const svg = report.shape("svg", { width: this.width, height: BOX.height, role: "img", "aria-label": label });
      const best = this.choice(), edge = this.x(state.budget), right = this.width - BOX.right;
      if (state.axis === "bytes" && edge < right) {
        svg.append(report.shape("rect", { class: "over", x: edge, y: BOX.top, width: right - edge, height: BOX.height - BOX.top - BOX.bottom }));
        svg.append(report.shape("path", { class: "edge", d: `M${edge} ${BOX.top}V${BOX.height - BOX.bottom}` }));
      }
      svg.append(...this.grid());
      const families = Object.keys(data.families);
      for (const p of this.points) if (!state.hidden.has(p.family)) svg.append(this.mark(p, families.indexOf(p.family)));
      if (best !== null)
        svg.append(report.shape("circle", { class: "ring", cx: this.x(at(best, state.axis, state.context)), cy: this.y(best.mean), r: 10 }));
      this.holder.replaceChildren(svg);
      this.words.textContent = this.say(best);
    }
  }

  const plots = ["recall", "text"].map((arena) => new Plot(arena));
  const draw = () => plots.forEach((plot) => plot.draw());

  function slider(id, show) {
    const input = document.getElementById(id), value = document.getElementById(`${id}-value`);
    const read = () => {
      state[id] = Math.round(2 ** Number(input.value));
      value.textContent = show(state[id]);
      input.setAttribute("aria-valuetext", value.textContent);
    };
    input.addEventListener("input", () => (read(), draw()));
    read();
  }

  function buttons() {
    const holder = document.getElementById("axis");
    for (const [axis, label] of Object.entries(AXES)) {
      const button = report.element("button", { type: "button", "aria-pressed": axis === state.axis }, label);
      button.addEventListener("click", () => {
        state.axis = axis;
        for (const other of holder.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
        draw();
      });
      holder.append(button);
    }
  }

  function legend() {
    const holder = document.getElementById("families"), there = new Set(data.points.map((p) => p.family));
    holder.replaceChildren();
    Object.entries(data.families).forEach(([label, color], index) => {
      if (!there.has(label)) return;
      const button = report.element("button", { type: "button", "aria-pressed": !state.hidden.has(label) });
      const swatch = report.element("span", { class: "swatch" });
      swatch.style.background = report.ink(color, index);
      button.append(swatch, label);
      button.addEventListener("click", () => {
        state.hidden.has(label) ? state.hidden.delete(label) : state.hidden.add(label);
        button.setAttribute("aria-pressed", !state.hidden.has(label));
        draw();
      });
      holder.append(button);
    });
  }

  slider("context", (n) => `${count(n)} tokens`);
  slider("budget", bytes);
  buttons();
  legend();
  draw();
  report.onThemeChange(() => (legend(), draw()));
  document.documentElement.dataset.ready = "yes";
})(window.report);

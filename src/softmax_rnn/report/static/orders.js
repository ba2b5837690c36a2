/* The order slider: the scores of one query, rebuilt from the first terms of the exponential's series. */
(function (report) {
  "use strict";

  const BAR = { width: 30, height: 210, labels: 84, scale: 34 };
  const STRIP = 44;

  /* w_n(x) = sum of x^i / i! up to n, for every score, divided by its own sum. */
  function series(scores, order) {
    const raw = scores.map((x) => {
      let term = 1, sum = 1;
      for (let i = 1; i <= order; i++) {
        term *= x / i;
        sum += term;
      }
      return sum;
    });
    const total = raw.reduce((a, b) => a + b, 0);
    return { weights: raw.map((w) => w / total), total };
  }

  function softmax(scores) {
    const top = Math.max(...scores);
    const raw = scores.map((x) => Math.exp(x - top));
    const total = raw.reduce((a, b) => a + b, 0);
    return raw.map((w) => w / total);
  }

  const largest = (a, b) => a.reduce((best, v, i) => (Math.abs(v - b[i]) > Math.abs(a[best] - b[best]) ? i : best), 0);

  /* Spaces and line ends as signs, so that a token can be told from its neighbour. */
  const visible = (token) => String(token ?? "").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅";

  /* What the order-n network alone must remember: d^n products of channels, for each channel of the values. */
  function stateWords(d, n) {
    if (!report.finite(d)) return "";
    let distinct = d;
    for (let i = 1; i <= n; i++) distinct *= (d + i - 1) / i;
    const size = (v) => (v < 1e6 ? Math.round(v).toLocaleString("en") : v.toExponential(1).replace(/e\+(\d+)/, (_, e) => `·10${superscript(e)}`));
    const full = n ? `${d}${superscript(n)} × ${d}` : `1 × ${d}`;
    return ` The hidden state of order ${n} is ${full} = ${size(d ** n * d)} numbers, ${size(distinct)} of them distinct.`;
  }

  const superscript = (n) => String(n).replace(/\d/g, (c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);

  class Orders {
    constructor(example, highest) {
      this.example = example;
      this.exact = softmax(example.scores);
      this.steps = Array.from({ length: highest + 1 }, (_, n) => series(example.scores, n));
      this.worst = this.steps.map((s) => largest(s.weights, this.exact));
      this.errors = this.steps.map((s, n) => Math.abs(s.weights[this.worst[n]] - this.exact[this.worst[n]]));
      this.input = document.getElementById("order");
      this.bars = document.getElementById("order-bars");
      this.strip = document.getElementById("order-errors");
      // The frame holds every even order; odd ones may leave it, and the words then say so.
      const even = this.steps.filter((_, n) => n % 2 === 0).flatMap((s) => s.weights);
      this.top = 1.14 * Math.max(...this.exact, ...even);
      this.bottom = this.steps.some((s) => s.weights.some((w) => w < 0)) ? -0.2 * this.top : 0;
      this.input.addEventListener("input", () => this.draw());
      new ResizeObserver(() => this.bars.clientWidth === this.width || this.draw()).observe(this.bars);
    }

    /* The keys that fit, those with the largest weight, in the order of the text. */
    keys() {
      const fit = Math.max(6, Math.floor((this.bars.clientWidth - BAR.scale) / BAR.width));
      const all = this.exact.map((_, i) => i);
      return all.sort((a, b) => this.exact[b] - this.exact[a]).slice(0, fit).sort((a, b) => a - b);
    }

    y(weight) {
      const inside = Math.min(Math.max(weight, this.bottom), this.top);
      return (BAR.height * (this.top - inside)) / (this.top - this.bottom);
    }

    bar(kind, x, width, weight) {
      const a = this.y(weight), b = this.y(0);
      const shape = { class: kind, x, width, y: Math.min(a, b), height: Math.max(Math.abs(a - b), 0.5), rx: 1.5 };
      return report.shape("rect", shape);
    }

    /* Lines at round weights, at most five of them. */
    grid(width) {
      const step = [0.01, 0.02, 0.05, 0.1, 0.2].find((s) => this.top / s < 6) ?? 0.5, lines = [];
      for (let weight = step; weight < this.top; weight += step) {
        const y = this.y(weight);
        lines.push(report.shape("path", { class: "grid", d: `M0 ${y}H${width}` }));
        lines.push(report.shape("text", { class: "grid", x: width, y: y - 3, "text-anchor": "end" }, report.number(weight, 2)));
      }
      return lines;
    }

    drawBars(order) {
      const keys = this.keys(), weights = this.steps[order].weights;
      const width = this.bars.clientWidth, step = (width - BAR.scale) / keys.length;
      const svg = report.shape("svg", {
        class: "bars", width, height: BAR.height + BAR.labels, role: "img",
        "aria-label": `Weights of ${keys.length} keys: softmax, and the series up to order ${order}`,
      });
      svg.append(...this.grid(width));
      keys.forEach((key, i) => {
        const x = i * step + 0.12 * step, half = 0.38 * step, group = report.shape("g", {});
        const title = `${visible(this.example.tokens?.[key])}, token ${key}, score ${report.number(this.example.scores[key], 2)}: `
          + `softmax ${report.number(this.exact[key], 4)}, order ${order} ${report.number(weights[key], 4)}`;
        group.append(report.shape("title", {}, title), this.bar("softmax", x, half, this.exact[key]));
        group.append(this.bar(weights[key] < 0 ? "below" : "series", x + half, half, weights[key]));
        const at = `translate(${x + half + 4} ${BAR.height + 8}) rotate(-90)`;
        const label = visible(this.example.tokens?.[key] ?? key);
        const short = label.length > 10 ? label.slice(0, 9) + "…" : label;
        group.append(report.shape("text", { transform: at, "text-anchor": "end" }, short));
        svg.append(group);
      });
      svg.append(report.shape("path", { class: "ground", d: `M0 ${this.y(0)}H${width}` }));
      this.bars.replaceChildren(svg);
    }

    /* Above the slider, a column per order: how far off it is, on a log scale from 1 down to 1e-6. */
    drawStrip(order) {
      const width = this.strip.clientWidth, thumb = 16, n = this.steps.length - 1;
      const svg = report.shape("svg", { width, height: STRIP, "aria-hidden": "true" });
      this.errors.forEach((error, i) => {
        const share = Math.min(Math.max(1 + Math.log10(Math.max(error, 1e-12)) / 6, 0.03), 1);
        const x = thumb / 2 + ((width - thumb) * i) / n, crosses = this.steps[i].weights.some((w) => w < 0);
        const kind = (i === order ? "now" : "") + (crosses ? " below" : "");
        svg.append(report.shape("rect", { class: kind, x: x - 4, width: 8, y: STRIP * (1 - share), height: STRIP * share, rx: 2 }));
      });
      this.strip.replaceChildren(svg);
    }

    words(order) {
      const { weights, total } = this.steps[order], worst = this.worst[order], keys = this.keys().length;
      const sum = order ? `The sum of the first ${order + 1} recurrent networks.` : "The first recurrent network alone: every token weighs the same.";
      const token = visible(this.example.tokens?.[worst] ?? worst);
      const off = `Largest difference from softmax: ${report.number(this.errors[order], 4)}, at “${token}” `
        + `(${report.number(weights[worst], 4)} instead of ${report.number(this.exact[worst], 4)}).`;
      const negative = weights.filter((w) => w < 0).length;
      const notes = [
        total < 0 ? "The sum of this odd order is negative, so dividing by it turns all weights around." : "",
        negative && total >= 0 ? `This odd order crosses zero: ${negative} of ${weights.length} weights are negative.` : "",
        weights.some((w) => w > this.top || w < this.bottom) ? "Bars are cut where they leave the frame." : "",
        keys < weights.length ? `Shown are the ${keys} of ${weights.length} keys with the largest weight.` : "",
      ];
      return [sum, off, ...notes].filter(Boolean).join(" ") + stateWords(this.example.head_dim, order);
    }

    draw() {
      if (this.bars.clientWidth < 2 * BAR.scale) return; // not laid out; the next size draws
      const order = Number(this.input.value);
      this.width = this.bars.clientWidth;
      document.getElementById("order-value").textContent = order;
      this.input.setAttribute("aria-valuetext", `order ${order}, largest difference ${report.number(this.errors[order], 4)}`);
      this.drawBars(order);
      this.drawStrip(order);
      document.getElementById("order-words").textContent = this.words(order);
    }
  }

  report.Orders = Orders;
})(window.report);

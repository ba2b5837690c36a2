/* Colours and numbers that the drawings share. Colours come from the style sheet, so that light and dark are decided there. */
window.report = {};

(function (report) {
  "use strict";

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PALETTE = ["#4269d0", "#d9662b", "#3a8f57", "#b0469b", "#8a6d3b", "#5b8fb0", "#c0392b", "#6b6b6b"];

  report.onThemeChange = (redraw) => dark.addEventListener("change", redraw);

  report.css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /* A curve's colour, made light enough to be seen on a dark page; anything that is not #rrggbb is replaced. */
  report.ink = function (color, index) {
    const hex = /^#[0-9a-f]{6}$/i.test(color || "") ? color : PALETTE[index % PALETTE.length];
    const rgb = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const light = (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255;
    const grey = Math.max(...rgb) - Math.min(...rgb) < 30; // black ink becomes white ink
    const lift = dark.matches ? Math.max(0, (grey ? 0.95 : 0.66) - light) : 0;
    return "rgb(" + rgb.map((c) => Math.round(c + (255 - c) * lift)).join(", ") + ")";
  };

  report.faint = (rgb, alpha) => rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);

  report.finite = (v) => typeof v === "number" && Number.isFinite(v);

  /* A number for reading: few digits, a true minus. */
  report.number = function (v, digits) {
    if (!report.finite(v)) return "—";
    const small = Math.abs(v) > 0 && Math.abs(v) < 0.5 * 10 ** -digits;
    return (small ? v.toExponential(1) : v.toFixed(digits)).replace("-", "−");
  };

  /* An element with text; text is never read as HTML. */
  report.element = function (tag, attributes, text) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  report.shape = function (tag, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
})(window.report);

/* Starts the page: charts one after another, the slider, the filter of runs. All text is already there. */
(function (report) {
  "use strict";

  const root = document.documentElement;

  /* Each chart in a task of its own, so that the first screen answers while the others are being drawn. */
  async function drawCharts(summary) {
    const figures = new Map((summary.figures || []).map((f) => [String(f.name), f]));
    const charts = [];
    for (const holder of document.querySelectorAll(".chart")) {
      const chart = new report.Chart(holder, figures.get(holder.dataset.figure));
      await chart.draw();
      chart.follow();
      charts.push(chart);
      await new Promise((next) => setTimeout(next));
    }
    report.onThemeChange(() => charts.forEach((chart) => chart.draw()));
    report.charts = charts;
  }

  function startSlider(example) {
    const input = document.getElementById("order");
    if (input) new report.Orders(example, Number(input.max)).draw();
  }

  /* Every word must occur in the row; claim:... and figure:... must be one of its groups. */
  function matches(row, words) {
    const groups = row.dataset.groups.toLowerCase().split(" "), text = row.textContent.toLowerCase();
    return words.every((w) => (/^(claim|figure):/.test(w) ? groups.includes(w) : text.includes(w)));
  }

  function startFilter() {
    const input = document.getElementById("filter");
    if (!input) return;
    const rows = [...document.querySelectorAll("#runs tbody tr")], count = document.getElementById("filter-count");
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !matches(row, words);
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} runs`;
    };
    input.addEventListener("input", apply);
    for (const link of document.querySelectorAll("a[data-filter]"))
      link.addEventListener("click", () => {
        input.value = link.dataset.filter;
        apply();
      });
    apply();
  }

  async function start() {
    const summary = JSON.parse(document.getElementById("summary").textContent);
    startFilter();
    startSlider(summary.example);
    if (window.Plotly) await drawCharts(summary);
    else root.classList.add("no-charts");
    // Charts have pushed the place that the address names further down.
    if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
    root.dataset.ready = "yes";
  }

  start();
})(window.report);

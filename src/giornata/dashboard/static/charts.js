// Charts of a job's metrics: raw and smoothed values by step, which go on while the job runs.
"use strict";
(() => {
  const POINTS = 1000, SMOOTHING = 0.95;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Exponential moving average, divided by the weight that there is so far, so that the beginning is not pulled to zero.
  const smoothed = (values) => {
    let sum = 0, weight = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = sum * SMOOTHING + value * (1 - SMOOTHING);
      weight = weight * SMOOTHING + 1 - SMOOTHING;
      return sum / weight;
    });
  };

  const shown = (plot, value) => value?.toPrecision(4) ?? "–";
  // Without a pointer on the chart its legend has the values of the last step.
  const atRest = (plot) => { if (plot.legend.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 }, false); };

  // The points of one job, which all charts of a page draw from. The server thins long curves, and always sends the last point.
  class Points {
    constructor(url, project) { Object.assign(this, { url, project, points: new Map(), last: -1, every: 1, busy: false }); }

    async load() {
      this.again = this.busy;
      if (this.busy) return;
      this.busy = true;
      try {
        // What came step by step is thinned again before it is too much to draw.
        const anew = this.points.size > 2 * POINTS, after = anew ? -1 : this.last;
        const reply = await fetch(`${this.url}?after_step=${after}&points=${POINTS}`, { headers: { "X-Project": this.project } });
        if (reply.ok) {
          const { items, every } = await reply.json();
          if (anew) Object.assign(this, { points: new Map(), every: 1 });
          for (const item of items) this.points.set(item.step, item.values);
          if (items.length) this.last = items[items.length - 1].step;
          this.every = Math.max(this.every, every ?? 1);
        }
      } catch { /* the sign of the page says that it is not live; the next event loads what is missing */ }
      this.busy = false;
      if (this.again) await this.load();
    }
  }

  class Chart {
    constructor(figure, source) {
      this.figure = figure;
      this.source = source;
      this.box = figure.querySelector(".chart-plot");
      this.said = figure.querySelector(".chart-said");
      this.keys = figure.dataset.keys.split(",");
    }

    series() {
      const { points } = this.source, steps = [...points.keys()].sort((a, b) => a - b);
      const found = this.keys.filter((key) => steps.some((step) => points.get(step)[key] != null));
      const columns = found.map((key) => steps.map((step) => points.get(step)[key] ?? null));
      return { steps, found, columns };
    }

    draw() {
      const { steps, found, columns } = this.series();
      this.plot?.destroy();
      this.plot = null;
      if (!found.length) { this.said.textContent = "no values yet"; return; }
      const pigments = ["terra", "lapis", "verdigris", "ochre"].map(css);
      const data = [steps], series = [{ label: "step" }];
      found.forEach((key, index) => {
        const color = pigments[index % pigments.length];
        const { smooth } = this.figure.dataset, many = steps.length > 20;
        if (smooth === "all" && many) {
          data.push(smoothed(columns[index]));
          return series.push({ label: key, stroke: color, width: 2, spanGaps: true, points: { show: false } });
        }
        const smooths = smooth === "first" && index === 0 && many;
        data.push(columns[index]);
        series.push({ label: key, stroke: smooths ? css("line") : color, width: smooths ? 1 : 2, spanGaps: true, points: { show: index > 0 } });
        if (smooths) { data.push(smoothed(columns[index])); series.push({ label: `${key}, smoothed`, stroke: color, width: 2, spanGaps: true, points: { show: false } }); }
      });
      for (const each of series.slice(1)) each.value = shown;
      const axis = { stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { stroke: css("line"), width: 1 } };
      const options = { width: this.box.clientWidth, height: 240, scales: { x: { time: false } }, series, axes: [axis, { ...axis, size: 56 }], hooks: { ready: [atRest], setLegend: [atRest] } };
      this.plot = new uPlot(options, data, this.box);
      const latest = columns[0].findLastIndex((each) => each != null), { every } = this.source;
      const thinned = every > 1 ? `; one point for every ${every.toLocaleString("en")} steps is drawn` : "";
      this.said.textContent = `${found[0]} ${columns[0][latest].toPrecision(4)} at step ${steps[latest].toLocaleString("en")}${thinned}`;
    }
  }

  const sources = new Map();
  const charts = [...document.querySelectorAll("[data-chart]")].map((figure) => {
    const { chart: url, project } = figure.dataset;
    if (!sources.has(url)) sources.set(url, new Points(url, project));
    return new Chart(figure, sources.get(url));
  });
  const load = () => sources.forEach(async (source) => { await source.load(); charts.filter((chart) => chart.source === source).forEach((chart) => chart.draw()); });
  load();
  document.body.addEventListener("fresh", load);
  document.addEventListener("theme", () => charts.forEach((chart) => chart.draw()));
  let resizing = null;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => charts.forEach((chart) => chart.draw()), 200);
  });
})();

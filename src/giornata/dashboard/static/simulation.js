// The pictures of simulated runs: one panel for each figure, one line for each run, and marks for what happened.
"use strict";
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const runs = JSON.parse(document.querySelector("[data-runs]").dataset.runs);
  const PIGMENTS = ["terra", "lapis", "verdigris"], DASHES = [[], [8, 4], [2, 4]];
  const OF_MARKS = { price: "ochre", quarantine: "violet", replaced: "umber", trouble: "sinopia" };
  // Two runs of one scenario have the same prices and troubles: each is drawn once.
  const marks = [...new Map(runs.flatMap((run) => run.marks).map((mark) => [`${mark.hour} ${mark.kind}`, mark])).values()];
  const points = {
    queued: (run) => [run.hours, run.queued],
    running: (run) => [run.hours, run.running],
    minutes: (run) => [run.job_minutes.map((_, index, all) => (100 * (index + 1)) / all.length), run.job_minutes],
  };

  const drawMarks = (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const mark of marks) {
      const x = plot.valToPos(mark.hour, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = css(OF_MARKS[mark.kind]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  let plots = [];
  const draw = () => {
    plots.forEach((plot) => plot.destroy());
    plots = [...document.querySelectorAll("[data-panel]")].map((figure) => {
      const box = figure.querySelector(".chart-plot"), what = figure.dataset.panel, byHour = what !== "minutes";
      const axis = { stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { stroke: css("line"), width: 1 } };
      const lines = runs.map((run, index) => ({
        label: run.name, stroke: css(PIGMENTS[index % PIGMENTS.length]), dash: DASHES[index % DASHES.length],
        width: 2, spanGaps: true, points: { show: false },
      }));
      const options = {
        width: box.clientWidth, height: 260, axes: [axis, { ...axis, size: 64 }],
        scales: { x: { time: false }, y: byHour ? { range: (_, __, most) => [0, Math.max(1, most * 1.05)] } : { distr: 3 } },
        series: [{ label: byHour ? "hour" : "% of jobs" }, ...lines],
        cursor: byHour ? { sync: { key: "hours" } } : {}, hooks: byHour ? { draw: [drawMarks] } : {},
      };
      return new uPlot(options, uPlot.join(runs.map(points[what])), box);
    });
  };
  draw();
  document.addEventListener("theme", draw);
  let resizing = null;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(draw, 200); });
})();

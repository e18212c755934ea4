// The page's own script: curves with one cursor in place of the drawings, and the buttons. Without it nothing is missing.
(function () {
  "use strict";
  var root = document.documentElement;
  var plots = [];

  function data(id) {
    var element = document.getElementById(id);
    return element ? JSON.parse(element.textContent) : null;
  }

  function colour(name) {
    return getComputedStyle(root).getPropertyValue("--" + name).trim();
  }

  // 90 s, 2:05, 1:00:00: as the drawings have it.
  function clock(seconds) {
    if (seconds < 120) return +seconds.toFixed(2) + " s";
    var whole = Math.round(seconds);
    var two = function (number) { return String(number).padStart(2, "0"); };
    var hours = Math.floor(whole / 3600);
    var rest = two(whole % 60);
    var minutes = Math.floor(whole / 60) % 60;
    return hours ? hours + ":" + two(minutes) + ":" + rest : minutes + ":" + rest;
  }

  // About four digits, with thousands separated.
  function figure(value) {
    if (value == null) return "–";
    var digits = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  }

  function short(value) {
    if (value == null) return "";
    if (value >= 1e6) return +(value / 1e6).toFixed(3) + "M";
    if (value >= 1e4) return +(value / 1e3).toFixed(3) + "k";
    return String(+value.toFixed(3));
  }

  function time(ms) {
    if (ms == null) return "";
    return ms < 1 ? short(ms * 1000) + " µs" : ms < 1000 ? short(ms) + " ms" : short(ms / 1000) + " s";
  }

  // Stalls as shaded times behind the curves, events as upright lines with the numbers of the list below.
  // Where there is room before the next event, the first panel has its words too.
  function marks(panel, curves) {
    function stalls(plot) {
      var box = plot.bbox;
      plot.ctx.save();
      plot.ctx.fillStyle = colour("failed");
      plot.ctx.globalAlpha = 0.18;
      curves.stalls.forEach(function (stall) {
        var left = Math.max(plot.valToPos(stall[0], "x", true), box.left);
        var right = Math.min(plot.valToPos(stall[1], "x", true), box.left + box.width);
        if (right > left) plot.ctx.fillRect(left, box.top, Math.max(right - left, 2), box.height);
      });
      plot.ctx.restore();
    }
    function events(plot) {
      var box = plot.bbox, scale = window.devicePixelRatio || 1, taken = -1e9;
      plot.ctx.save();
      plot.ctx.strokeStyle = plot.ctx.fillStyle = colour("text");
      plot.ctx.font = 11 * scale + "px system-ui, sans-serif";
      plot.ctx.textAlign = "left";
      plot.ctx.textBaseline = "top";
      plot.ctx.setLineDash([3 * scale, 3 * scale]);
      curves.events.forEach(function (event, at) {
        var left = plot.valToPos(event.at, "x", true);
        if (left < box.left || left > box.left + box.width) return;
        plot.ctx.beginPath();
        plot.ctx.moveTo(left, box.top);
        plot.ctx.lineTo(left, box.top + box.height);
        plot.ctx.stroke();
        var next = curves.events[at + 1];
        var end = Math.min(next ? plot.valToPos(next.at, "x", true) : Infinity, box.left + box.width);
        var fits = function (text) { return left + plot.ctx.measureText(text).width + 6 * scale <= end; };
        var text = String(at + 1), words = text + " " + event.text;
        if (panel === curves.panels[0] && fits(words)) text = words;
        var width = plot.ctx.measureText(text).width + 6 * scale;
        if (left < taken || left + width > box.left + box.width) return;
        plot.ctx.fillText(text, left + 3 * scale, box.top - 14 * scale);
        taken = left + width;
      });
      plot.ctx.restore();
    }
    return { hooks: { drawClear: [stalls], draw: [events] } };
  }

  function axis(scale, label, side, grid) {
    var line = { stroke: colour("line"), width: 1 };
    return {
      scale: scale, side: side, size: scale === "x" ? 30 : 58, stroke: colour("quiet"), font: "12px system-ui, sans-serif",
      grid: grid ? line : { show: false }, ticks: { show: false }, gap: 6,
      values: function (plot, values) { return values.map(label); }
    };
  }

  // A value holds until the next one. Without a cursor the legend has the median and the largest value.
  function series(curve, label) {
    return {
      label: curve.name + (curve.baseline ? " (baseline)" : ""), scale: curve.depth ? "depth" : "y",
      stroke: colour(curve.colour), width: curve.baseline ? 1.5 : 2, show: !curve.hidden,
      dash: curve.dashes, spanGaps: false, points: { show: false }, paths: uPlot.paths.stepped({ align: 1, alignGaps: 1 }),
      value: function (plot, value, series, at) { return at == null ? curve.summary : label(value); }
    };
  }

  function options(panel, curves, width) {
    var isTime = panel.unit === "ms";
    var hasDepth = panel.curves.some(function (curve) { return curve.depth; });
    var anyDepth = curves.panels.some(function (other) { return other.curves.some(function (curve) { return curve.depth; }); });
    var label = isTime ? time : short;
    var value = isTime ? function (ms) { return ms == null ? "–" : figure(ms) + " ms"; } : figure;
    var fromZero = function (plot, least, most) { return [0, most > 0 ? most * 1.08 : 1]; };
    var axes = [axis("x", clock, 2, true), axis("y", label, 3, true)];
    if (hasDepth) axes.push(axis("depth", short, 1, false));
    return {
      width: width, height: panel.id === "errors-over-time" ? 160 : 240,
      padding: [16, anyDepth && !hasDepth ? 70 : 12, 0, 0],
      cursor: { sync: { key: "run", setSeries: false }, y: false, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: isTime ? { distr: 3 } : { range: fromZero }, depth: { range: fromZero } },
      axes: axes,
      series: [{ label: "time", value: function (plot, seconds) { return seconds == null ? "all" : clock(seconds); } }].concat(
        panel.curves.map(function (curve) {
          return series(curve, curve.depth ? function (depth) { return figure(depth); } : value);
        })
      ),
      plugins: [marks(panel, curves)],
      hooks: { setScale: [zoomAll] }
    };
  }

  // A zoom of one panel is a zoom of all.
  var isZooming = false;
  function zoomAll(plot, key) {
    if (key !== "x" || isZooming) return;
    isZooming = true;
    var range = { min: plot.scales.x.min, max: plot.scales.x.max };
    plots.forEach(function (other) { if (other !== plot) other.setScale("x", range); });
    isZooming = false;
  }

  // Left and right move the cursor of the panel that has the focus, and of all others.
  function keys(plot, event) {
    var step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    var at = Math.min(Math.max((plot.cursor.idx == null ? -1 : plot.cursor.idx) + step, 0), plot.data[0].length - 1);
    var left = plot.valToPos(plot.data[0][at], "x");
    plots.forEach(function (other) { other.setCursor({ left: left, top: 10 }); });
  }

  function width(figure) {
    return Math.max(Math.floor(figure.clientWidth), 240);
  }

  function draw(curves) {
    plots.forEach(function (plot) { plot.destroy(); });
    plots = [];
    curves.panels.forEach(function (panel) {
      var figure = document.getElementById("panel-" + panel.id);
      if (!figure) return;
      figure.classList.add("live");
      var rows = [curves.x].concat(panel.curves.map(function (curve) { return curve.y; }));
      var plot = new uPlot(options(panel, curves, width(figure)), rows, figure);
      var canvas = plot.root.querySelector("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", panel.title + " over time. Arrow keys move the cursor.");
      plot.over.tabIndex = 0;
      plot.over.setAttribute("role", "group");
      plot.over.setAttribute("aria-label", panel.title + ": cursor");
      plot.over.addEventListener("keydown", keys.bind(null, plot));
      plots.push(plot);
    });
  }

  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    document.body.appendChild(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("the browser refused"));
  }

  function buttons() {
    var bar = document.querySelector(".actions");
    bar.hidden = false;
    var status = bar.querySelector("[role=status]");
    bar.addEventListener("click", function (event) {
      var what = event.target.getAttribute("data-copy");
      if (!what) return;
      var value = data(what);
      var text = typeof value === "string" ? value : JSON.stringify(value, null, 2) + "\n";
      var without = document.getElementById(what).getAttribute("data-without");
      copy(text).then(
        function () { status.textContent = without ? "Copied, without " + without + "." : "Copied."; },
        function (error) { status.textContent = "Not copied: " + error.message; }
      );
    });
  }

  buttons();
  var curves = data("curves");
  if (curves && curves.panels.length && window.uPlot) {
    draw(curves);
    var redraw = function () { draw(curves); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    window.addEventListener("resize", function () {
      plots.forEach(function (plot) {
        var size = width(plot.root.parentNode);
        if (size !== plot.width) plot.setSize({ width: size, height: plot.height });
      });
    });
  }
})();

// Charts of the HTML report: step times, parts and signals on one time axis, with one cursor.
(function () {
  'use strict';
  const lanes = window.flatoutLanes;
  const { el, legendKey, seconds } = lanes;
  const root = document.documentElement;
  let data = null;
  const charts = [];
  let range = null;  // [from, to] in seconds while zoomed

  function css(name) {
    return getComputedStyle(root).getPropertyValue('--' + name).trim();
  }

  // ---- numbers for people ----
  function scaled(v, base, units) {
    let i = 0;
    while (Math.abs(v) >= base * 0.9995 && i < units.length - 1) {
      v /= base;
      ++i;
    }
    return +v.toPrecision(3) + ' ' + units[i];
  }
  const FORMAT = {
    'cores': (v) => String(+v.toPrecision(3)),
    'tasks': (v) => String(+v.toPrecision(3)),
    'bytes': (v) => scaled(v, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']),
    'bytes/s': (v) => scaled(v, 1024, ['B/s', 'KiB/s', 'MiB/s', 'GiB/s']),
    'ratio': (v) => +(v * 100).toPrecision(3) + ' %',
    '1/s': (v) => scaled(v, 1000, ['/s', 'k/s', 'M/s', 'G/s']),
    '1': (v) => String(+v.toPrecision(4)),
    'ms': (v) => seconds(v / 1000),
  };

  // Round ticks for bytes are powers of two, not of ten.
  function byteTicks(scale) {
    if (!(scale.max > 0)) return;
    const unit = Math.pow(1024, Math.floor(Math.log(scale.max) / Math.log(1024)));
    const raw = scale.max / unit / 4;
    const base = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw) * unit;
    scale.ticks = [];
    for (let v = 0; v <= scale.max; v += step) scale.ticks.push({ value: v });
  }

  // Round times, also beyond a minute; labels then read as on a clock.
  function timeTicks(scale) {
    const span = scale.max - scale.min;
    const step = lanes.tickStep(span, scale.width / 110);
    scale.ticks = [];
    for (let v = Math.ceil(scale.min / step - 1e-9) * step; v <= scale.max; v += step) scale.ticks.push({ value: v });
  }

  // ---- plugins ----
  // Epochs, changes of speed and gaps behind every chart.
  const events = {
    id: 'flatoutEvents',
    beforeDatasetsDraw(chart) {
      const { ctx, chartArea: area, scales: { x } } = chart;
      ctx.save();
      ctx.beginPath();
      ctx.rect(area.left, area.top, area.width, area.height);
      ctx.clip();
      const epochs = data.events.filter((e) => e.kind === 'epoch').length;
      for (const e of data.events) {
        if (e.kind === 'epoch' && epochs > 30) continue;  // a fence says nothing
        const at = x.getPixelForValue(e.t);
        if (e.kind === 'gap') {
          ctx.fillStyle = css('line');
          ctx.fillRect(at, area.top, Math.max(x.getPixelForValue(e.end) - at, 1), area.height);
          continue;
        }
        ctx.strokeStyle = e.kind === 'change' ? css('bad') : css('muted');
        ctx.lineWidth = e.kind === 'change' ? 1.5 : 1;
        ctx.globalAlpha = e.kind === 'change' ? 1 : 0.35;
        ctx.setLineDash(e.kind === 'change' ? [] : [3, 3]);
        ctx.beginPath();
        ctx.moveTo(at, area.top);
        ctx.lineTo(at, area.bottom);
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.setLineDash([]);
        if (e.kind === 'change' && chart.canvas.closest('.tall')) {
          ctx.fillStyle = css('bad');
          ctx.font = '12px system-ui, sans-serif';
          const left = at > area.left + area.width * 0.6;
          ctx.textAlign = left ? 'right' : 'left';
          ctx.fillText(e.text, at + (left ? -6 : 6), area.top + 12);
        }
      }
      ctx.restore();
    },
  };

  // ---- a chart with its head, legend, cursor and zoom ----
  // spec: {host, title, unit, series: [{label, colour, points, stepped, style...}], type, stacked, max}
  function addChart(spec) {
    const head = el('div', 'chart-head');
    head.appendChild(el('h4', '', spec.title));
    const at = el('span', 'at');
    const legend = el('ul');
    spec.series.forEach((s) => {
      if (s.quiet) return;
      const item = el('li');
      s.key = item;
      s.value = el('b');
      item.append(legendKey('var(--' + s.colour + ')'), s.label, s.value);
      legend.appendChild(item);
    });
    head.append(legend, at);
    const box = el('div', 'chart-box');
    const canvas = el('canvas');
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', spec.title + ' over time: ' + spec.series.filter((s) => !s.quiet).map(summary).join('; '));
    const cursor = el('div', 'cursor');
    const shade = el('div', 'range');
    box.append(canvas, shade, cursor);
    spec.host.append(head, box);

    function summary(s) {
      const ys = s.points.map((p) => p.y).filter((y) => y !== null);
      if (ys.length === 0) return s.label + ' not measured';
      return s.label + ' from ' + FORMAT[spec.unit](Math.min.apply(null, ys)) + ' to ' + FORMAT[spec.unit](Math.max.apply(null, ys));
    }

    const chart = new Chart(canvas, {
      type: 'line',
      data: {
        datasets: spec.series.map((s) => Object.assign({
          label: s.label, data: s.points, borderWidth: 1.5, pointRadius: 0, pointHitRadius: 0,
          tension: 0, spanGaps: false, stack: spec.stacked ? 'all' : undefined,
        }, paint(spec, s), s.style || {})),
      },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true,
        events: [],
        layout: { autoPadding: false, padding: { right: 16, top: 6 } },
        plugins: { legend: { display: false }, tooltip: { enabled: false } },
        scales: {
          x: {
            type: 'linear', min: 0, max: data.length_s, bounds: 'data',
            ticks: { maxRotation: 0, includeBounds: false, autoSkip: false, callback: (v) => lanes.clock(v, data.length_s) },
            grid: { drawTicks: false },
            afterBuildTicks: timeTicks,
          },
          y: {
            beginAtZero: true, stacked: !!spec.stacked, max: spec.max, grace: spec.max ? 0 : '4%',
            ticks: { maxTicksLimit: spec.host.classList.contains('tall') ? 6 : 4, callback: (v) => FORMAT[spec.unit](v) },
            grid: { drawTicks: false },
            afterBuildTicks: spec.unit.startsWith('bytes') ? byteTicks : undefined,
            // One width for all, so that the charts are aligned in time.
            afterFit: (scale) => { scale.width = 72; },
          },
        },
      },
      plugins: [events],
    });
    const entry = { chart: chart, spec: spec, cursor: cursor, shade: shade, at: at, box: box };
    charts.push(entry);
    colour(entry);

    let from = null;
    const timeAt = (event) => {
      const rect = canvas.getBoundingClientRect();
      const area = chart.chartArea;
      const x = Math.min(Math.max(event.clientX - rect.left, area.left), area.right);
      return chart.scales.x.getValueForPixel(x);
    };
    box.addEventListener('pointermove', (event) => {
      const t = timeAt(event);
      show(t);
      if (from !== null) {
        const a = chart.scales.x.getPixelForValue(Math.min(from, t));
        const b = chart.scales.x.getPixelForValue(Math.max(from, t));
        shade.style.display = 'block';
        shade.style.left = a + 'px';
        shade.style.width = b - a + 'px';
      }
    });
    box.addEventListener('pointerleave', () => { if (from === null) show(null); });
    box.addEventListener('pointerdown', (event) => {
      if (event.pointerType === 'touch') return show(timeAt(event));
      from = timeAt(event);
      box.setPointerCapture(event.pointerId);
    });
    box.addEventListener('pointerup', (event) => {
      if (from === null) return;
      const to = timeAt(event);
      shade.style.display = 'none';
      const [a, b] = [Math.min(from, to), Math.max(from, to)];
      from = null;
      if (b - a > (chart.scales.x.max - chart.scales.x.min) * 0.01) zoom([a, b]);
    });
    box.addEventListener('dblclick', () => zoom(null));
    return entry;
  }

  function zoom(to) {
    range = to;
    for (const { chart } of charts) {
      chart.options.scales.x.min = range ? range[0] : 0;
      chart.options.scales.x.max = range ? range[1] : data.length_s;
      chart.update('none');
    }
  }

  // The last point at or before t.
  function pointAt(points, t) {
    let low = 0;
    let high = points.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (points[middle].x <= t) low = middle; else high = middle - 1;
    }
    return points[low];
  }

  let pending = null;
  function show(t) {
    if (pending === null) requestAnimationFrame(() => { const p = pending; pending = null; apply(p.t); });
    pending = { t: t };
  }
  function apply(t) {
    for (const c of charts) {
      c.cursor.style.display = t === null ? 'none' : 'block';
      c.at.textContent = '';
      if (t !== null) {
        c.cursor.style.left = c.chart.scales.x.getPixelForValue(t) + 'px';
        c.at.textContent = c.spec.describe ? c.spec.describe(t) : 'at ' + lanes.clock(t, data.length_s);
      }
      for (const s of c.spec.series) {
        if (!s.value) continue;
        const p = t === null || s.points.length === 0 ? null : pointAt(s.points, t);
        s.value.textContent = p && p.y !== null && !s.marks ? FORMAT[c.spec.unit](p.y) : '';
      }
    }
  }

  function paint(spec, s) {
    const value = css(s.colour);
    return {
      borderColor: value, backgroundColor: spec.stacked || s.marks ? value : 'transparent',
      pointBackgroundColor: value, pointBorderColor: value,
    };
  }

  function colour(c) {
    const { chart, spec } = c;
    chart.data.datasets.forEach((d, i) => Object.assign(d, paint(spec, spec.series[i])));
    for (const axis of ['x', 'y']) {
      chart.options.scales[axis].ticks.color = css('muted');
      chart.options.scales[axis].grid.color = css('line');
      chart.options.scales[axis].grid.borderColor = css('line');
    }
    chart.update();
  }

  // ---- step times ----
  function stepChart() {
    const host = document.getElementById('step-chart');
    const s = data.steps;
    if (!host || s.t.length === 0) return;
    const points = s.t.map((t, i) => ({ x: t, y: s.ms[i], i: i }));
    const sorted = s.ms.slice().sort((a, b) => a - b);
    const high = sorted[Math.floor((sorted.length - 1) * 0.97)];
    const longest = sorted[sorted.length - 1];
    // A few huge steps must not press the rest flat: they are drawn at the upper edge.
    const cap = longest > 3 * Math.max(high, s.median_ms || 0) ? 1.6 * Math.max(high, s.median_ms || 0) : undefined;
    const clipped = (p) => ({ x: p.x, y: cap ? Math.min(p.y, cap) : p.y });
    const of = (kind) => points.filter((p) => s.kind[p.i] === kind).map(clipped);
    const marks = (label, kind, colourName, style, radius) => ({
      label: label, colour: colourName, points: of(kind), marks: true,
      style: { order: -1, showLine: false, pointStyle: style, pointRadius: radius, clip: false },
    });
    const series = [
      { label: 'step time', colour: 'c0', points: points.map(clipped),
        style: { borderWidth: 1.2, pointRadius: points.length < 250 ? 1.6 : 0 } },
      { label: 'median', colour: 'muted', points: s.median_ms ? [{ x: 0, y: s.median_ms }, { x: data.length_s, y: s.median_ms }] : [],
        style: { borderDash: [5, 4], borderWidth: 1 } },
      marks('warm-up', 'warmup', 'other', 'circle', 3.5),
      marks('slow', 'slow', 'c1', 'rectRot', 5),
      marks('checkpoint', 'checkpoint', 'checkpoint', 'triangle', 5),
      marks('validation', 'validation', 'c2', 'rect', 4),
    ].filter((x) => x.points.length > 0);
    addChart({
      host: host, title: 'Time of each step', unit: 'ms', series: series, max: cap,
      describe: (t) => {
        const p = pointAt(points, t);
        const next = points[Math.min(p.i + (p.x < t ? 1 : 0), points.length - 1)];
        return 'step ' + s.index[next.i] + ': ' + seconds(next.y / 1000) + ' at ' + lanes.clock(t, data.length_s);
      },
    });
    series[0].value.remove();
    series[0].value = null;
    const over = cap ? points.filter((p) => p.y > cap).length : 0;
    const notes = [];
    if (over > 0) notes.push(over + ' steps beyond the chart stand at its upper edge; the longest took ' + seconds(longest / 1000) + '.');
    if (s.all > s.t.length) notes.push('Of ' + s.all + ' steps the shortest and longest of each interval are drawn.');
    if (notes.length > 0) host.appendChild(el('p', 'beyond', notes.join(' ')));
  }

  function partChart() {
    const host = document.getElementById('part-chart');
    if (!host || data.parts.t.length < 2) return;
    const series = data.parts.parts.map((part) => ({
      label: part.label, colour: part.name, quiet: false,
      points: data.parts.t.map((t, i) => ({ x: t, y: part.ms[i] })),
      style: { fill: true, borderWidth: 0, stepped: 'after' },
    }));
    const sums = data.parts.t.map((t, i) => data.parts.parts.reduce((a, p) => a + (p.ms[i] || 0), 0)).sort((a, b) => a - b);
    const high = sums[Math.floor((sums.length - 1) * 0.97)];
    const max = sums[sums.length - 1] > 3 * high ? 1.6 * high : undefined;
    addChart({ host: host, title: 'Parts of a step', unit: 'ms', series: series, stacked: true, max: max });
  }

  function signalCharts() {
    const all = document.getElementById('charts');
    const { dt, n, list } = data.charts;
    for (const c of list) {
      const host = el('div', 'chart');
      host.id = 'chart-' + c.id;
      all.appendChild(host);
      let next = 0;
      const series = c.curves.map((curve) => ({
        label: curve.label,
        colour: curve.limit ? 'bad' : 'c' + (next++ % 6),
        points: curve.v.map((v, i) => ({ x: (i + 0.5) * dt, y: v })),
        style: curve.limit ? { borderDash: [5, 4], borderWidth: 1 } : n === 1 ? { pointRadius: 3 } : {},
      }));
      addChart({ host: host, title: c.title, unit: FORMAT[c.unit] ? c.unit : '1', series: series });
    }
    if (list.length === 0) all.appendChild(el('p', 'muted', 'No signals were recorded.'));
  }

  window.flatoutTheme(() => charts.forEach(colour));
  window.addEventListener('beforeprint', () => { for (const d of document.querySelectorAll('#verdict details')) d.open = true; });

  // ---- flame graph ----
  function flame() {
    const host = document.getElementById('flame');
    const svg = host && host.querySelector('svg.flame');
    if (!svg) return;
    const info = document.getElementById('flame-info');
    const graph = window.flatoutFlameAttach(svg, () => Math.max(host.clientWidth, 200), (text) => { info.textContent = text || '\u00a0'; });
    if (!graph) return;
    const input = document.getElementById('flame-search');
    input.addEventListener('input', () => graph.search(input.value));
    document.getElementById('flame-reset').addEventListener('click', () => { input.value = ''; graph.search(''); graph.reset(); });
    let width = host.clientWidth;
    new ResizeObserver(() => {
      if (!host.isConnected || host.clientWidth === width) return;
      width = host.clientWidth;
      graph.draw();
    }).observe(host);
  }

  // Draws what the document's data say; again when `serve` has put a newer report in its place.
  function draw() {
    for (const { chart } of charts) chart.destroy();
    charts.length = 0;
    data = JSON.parse(document.getElementById('data').textContent);
    stepChart();
    partChart();
    signalCharts();
    lanes.drawStates(data);
    lanes.drawLanes(data);
    flame();
    if (range) zoom(range);
    root.setAttribute('data-ready', 'true');
  }
  window.flatoutReport = { draw: draw };
  draw();
})();

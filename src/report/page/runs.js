// The list of runs: asked for again whenever the server says that something is new.
(function () {
  'use strict';
  const { el, seconds } = window.flatoutLanes;
  const NS = 'http://www.w3.org/2000/svg';
  const MOST_HISTORIES = 8;
  const MOST_BARS = 60;
  const state = document.getElementById('state');
  const filter = document.getElementById('filter');
  const compare = document.getElementById('compare');
  const chosen = [];  // ids, the one chosen last at the end: two at most
  let runs = [];
  let shown = -1;
  let latest = 0;
  let busy = false;
  let source = null;

  function say(text) {
    if (state.textContent !== text) state.textContent = text;
  }
  function startedText(run) {
    return run.begin_unix_s ? new Date(run.begin_unix_s * 1000).toLocaleString() : '';
  }
  function stepText(run) {
    return run.median_ms ? seconds(run.median_ms / 1000) : '–';
  }
  function runLink(run, text) {
    const a = el('a', '', text);
    a.href = '/run/' + encodeURIComponent(run.id);
    return a;
  }

  function statePill(run) {
    if (run.live) return el('span', 'pill live', 'live');
    if (!run.read) return el('span', 'pill', 'not read yet');
    if (run.failed) return el('span', 'pill failed', run.exit || 'failed');
    return el('span', 'pill', run.exit || (run.finished ? 'ended' : 'cut off'));
  }

  function row(run, slowest) {
    const tr = el('tr', run.group ? 'rank' : '');
    tr.dataset.run = run.id;
    const box = el('input');
    box.type = 'checkbox';
    box.checked = chosen.includes(run.id);
    box.setAttribute('aria-label', 'Compare ' + run.id);
    box.addEventListener('change', () => choose(run.id, box.checked));
    const pick = el('td');
    pick.appendChild(box);
    const name = el('td');
    name.append(runLink(run, run.command || run.id), el('span', 'muted', run.host + ', ' + seconds(run.length_s)));
    const where = el('td');
    where.appendChild(statePill(run));
    const verdict = el('td');
    verdict.append(el('code', '', run.verdict), el('span', 'muted', run.headline));
    tr.append(pick, el('td', 'time', startedText(run)), name, el('td', 'n', run.rank), where,
      el('td', 'n', String(run.steps)), el('td', slowest ? 'n slowest' : 'n', stepText(run)), verdict);
    return tr;
  }

  // The row above the ranks of one job: what they say together.
  function groupRow(ranks) {
    const timed = ranks.filter((r) => r.median_ms);
    const slowest = timed.reduce((a, b) => (a && a.median_ms >= b.median_ms ? a : b), null);
    const fastest = timed.reduce((a, b) => (a && a.median_ms <= b.median_ms ? a : b), null);
    const live = ranks.filter((r) => r.live).length;
    const tr = el('tr', 'ranks');
    const name = el('td', '', ranks[0].command);
    name.appendChild(el('span', 'muted', ranks[0].group));
    const spread = slowest && timed.length > 1
      ? seconds(fastest.median_ms / 1000) + ' to ' + seconds(slowest.median_ms / 1000) : '';
    tr.append(el('td'), el('td', 'time', startedText(ranks[0])), name, el('td', 'n', ranks.length + ' ranks'),
      el('td', '', live + ' live'), el('td'), el('td', 'n', spread),
      el('td', '', slowest && timed.length > 1 ? 'slowest: rank ' + slowest.rank : ''));
    return { tr: tr, slowest: timed.length > 1 ? slowest : null };
  }

  function choose(id, on) {
    const at = chosen.indexOf(id);
    if (at >= 0) chosen.splice(at, 1);
    if (on) chosen.push(id);
    while (chosen.length > 2) chosen.shift();
    draw();
  }

  function drawCompare() {
    const pair = runs.filter((r) => chosen.includes(r.id)).sort((a, b) => (a.begin_unix_s || 0) - (b.begin_unix_s || 0));
    compare.hidden = pair.length !== 2;
    if (pair.length !== 2) return;
    compare.href = '/compare?old=' + encodeURIComponent(pair[0].id) + '&new=' + encodeURIComponent(pair[1].id);
  }

  function drawHistory(list) {
    const host = document.getElementById('histories');
    const byCommand = new Map();
    for (const run of list) {
      if (!run.median_ms || run.rank !== '' && run.rank !== '0') continue;
      if (!byCommand.has(run.command)) byCommand.set(run.command, []);
      byCommand.get(run.command).push(run);
    }
    host.textContent = '';
    for (const [command, of] of byCommand) {
      if (of.length < 2 || host.childElementCount >= MOST_HISTORIES) continue;
      const bars = of.slice(0, MOST_BARS).reverse();
      const box = el('div', 'history');
      const title = el('p');
      title.appendChild(el('code', '', command));
      const svg = document.createElementNS(NS, 'svg');
      const longest = Math.max.apply(null, bars.map((r) => r.median_ms));
      const width = 1000 / Math.max(bars.length, 10);
      svg.setAttribute('viewBox', '0 0 1000 90');
      svg.setAttribute('preserveAspectRatio', 'none');
      bars.forEach((run, i) => {
        const a = document.createElementNS(NS, 'a');
        a.setAttribute('href', '/run/' + encodeURIComponent(run.id));
        const rect = document.createElementNS(NS, 'rect');
        const height = 86 * run.median_ms / longest;
        for (const [name, value] of [['x', i * width + 1], ['y', 90 - height], ['width', Math.max(width - 2, 1)], ['height', height],
          ['class', run.failed ? 'bad' : run.verdict === 'healthy' || run.verdict === 'none' ? '' : 'found']]) {
          rect.setAttribute(name, value);
        }
        const text = document.createElementNS(NS, 'title');
        text.textContent = startedText(run) + ': ' + stepText(run) + ', ' + run.verdict;
        rect.appendChild(text);
        a.appendChild(rect);
        svg.appendChild(a);
      });
      const first = bars[0];
      const last = bars[bars.length - 1];
      box.append(title, svg, el('p', 'muted', bars.length + ' runs, from ' + stepText(first) + ' to ' + stepText(last) +
        '; the longest step is ' + seconds(longest / 1000) + '.'));
      host.appendChild(box);
    }
    document.getElementById('history').hidden = host.childElementCount === 0;
  }

  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const list = runs.filter((r) => {
      const text = [r.id, r.command, r.host, r.verdict, r.headline].join(' ').toLowerCase();
      return words.every((w) => text.includes(w));
    });
    const rows = document.getElementById('rows');
    const focused = rows.contains(document.activeElement) ? document.activeElement.closest('tr').dataset.run : null;
    rows.textContent = '';
    const done = new Set();
    for (const run of list) {
      if (!run.group) {
        rows.appendChild(row(run, false));
        continue;
      }
      if (done.has(run.group)) continue;
      done.add(run.group);
      const ranks = list.filter((r) => r.group === run.group).sort((a, b) => +a.rank - +b.rank);
      const head = groupRow(ranks);
      if (ranks.length > 1) rows.appendChild(head.tr);
      for (const rank of ranks) rows.appendChild(row(rank, rank === head.slowest));
    }
    for (const tr of rows.children) {
      if (focused && tr.dataset.run === focused) tr.querySelector('input').focus();
    }
    drawCompare();
    drawHistory(list);
    const live = runs.filter((r) => r.live).length;
    say(runs.length === 0 ? 'No run folders yet.' : runs.length + (runs.length === 1 ? ' run' : ' runs') + ', ' + live + ' live.');
    document.documentElement.setAttribute('data-ready', 'true');
  }

  async function update() {
    if (busy || latest === shown) return;
    busy = true;
    try {
      const answer = await fetch('/runs.json', { cache: 'no-store' });
      if (!answer.ok) throw new Error(String(answer.status));
      const told = await answer.json();
      runs = told.runs;
      shown = told.revision;
      draw();
    } catch (e) {
      say('The runs could not be fetched; trying again.');
      setTimeout(update, 3000);
    }
    busy = false;
    if (latest > shown) setTimeout(update, 500);
  }

  function listen() {
    if (source || document.hidden) return;
    source = new EventSource('/events');
    source.addEventListener('state', (event) => {
      latest = JSON.parse(event.data).revision;
      update();
    });
    source.addEventListener('error', () => say('The server does not answer; this is what it said last.'));
  }
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) return listen();
    if (source) source.close();
    source = null;
  });
  filter.addEventListener('input', draw);
  window.flatoutTheme(() => {});
  listen();
})();

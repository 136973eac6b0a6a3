// Keeps the page of a run up to date: the server says when there is something new, the report is
// fetched and put in place of the old one. What the reader has opened, zoomed or scrolled to stays.
(function () {
  'use strict';
  const bar = document.getElementById('live');
  const state = document.getElementById('live-state');
  const pause = document.getElementById('live-pause');
  const base = '/run/' + encodeURIComponent(bar.dataset.run);
  let shown = +bar.dataset.revision;
  let latest = shown;
  const wasLive = bar.dataset.live === 'yes';
  let live = wasLive;
  let paused = false;
  let busy = false;
  let source = null;

  function say(text) {
    if (state.textContent !== text) state.textContent = text;
  }
  function sayState() {
    if (!live) say(wasLive ? 'The run has ended.' : '');
    else if (paused) say('Paused' + (latest > shown ? '; there is something newer.' : '.'));
    else say('Live');
    pause.hidden = !live;
    pause.textContent = paused ? 'Go on' : 'Pause';
  }

  // What tells a part that opens and closes from the others; counts and gains in it change.
  function key(details) {
    const code = details.querySelector('summary code');
    return code ? code.textContent : details.querySelector('summary').firstChild.textContent;
  }

  function replace(next) {
    const opened = new Map();
    for (const d of document.querySelectorAll('main details')) opened.set(key(d), d.open);
    const search = document.getElementById('flame-search');
    const wanted = search ? search.value : '';
    const top = window.scrollY;
    for (const part of ['ul.run', 'nav.jump', 'main', '#data']) {
      document.querySelector(part).replaceWith(next.querySelector(part));
    }
    for (const d of document.querySelectorAll('main details')) {
      if (opened.has(key(d))) d.open = opened.get(key(d));
    }
    window.flatoutReport.draw();
    const field = document.getElementById('flame-search');
    if (field && wanted) {
      field.value = wanted;
      field.dispatchEvent(new Event('input'));
    }
    window.scrollTo({ top: top, behavior: 'instant' });
  }

  async function update() {
    if (busy || paused || latest <= shown) return;
    busy = true;
    const wanted = latest;
    try {
      const answer = await fetch(base + '/body', { cache: 'no-store' });
      if (!answer.ok) throw new Error(String(answer.status));
      replace(new DOMParser().parseFromString(await answer.text(), 'text/html'));
      shown = wanted;
      document.documentElement.dataset.revision = shown;
      sayState();
    } catch (e) {
      say('The report could not be fetched; trying again.');
      setTimeout(update, 3000);
    }
    busy = false;
    if (latest > shown) setTimeout(update, 500);
  }

  // Not in a hidden tab: browsers keep only six connections to a server.
  function listen() {
    if (source || !live || document.hidden) return;
    source = new EventSource(base + '/events');
    source.addEventListener('state', (event) => {
      const told = JSON.parse(event.data);
      latest = told.revision;
      live = told.live;
      if (!live) stop();
      sayState();
      update();
    });
    source.addEventListener('error', () => {
      say('The server does not answer; this is what it said last.');
    });
  }
  function stop() {
    if (source) source.close();
    source = null;
  }
  document.addEventListener('visibilitychange', () => { document.hidden ? stop() : listen(); });
  pause.addEventListener('click', () => {
    paused = !paused;
    sayState();
    update();
  });
  sayState();
  listen();
})();

// Starts the page: the form, the list of jobs, the results, dropped pictures, and the state of the server.
import {ApiError, askForKey, call, hasKey} from './api.js';
import {byId, icon, KEY, notice, THEME_ICONS} from './dom.js';
import {fill, startForm} from './form.js';
import {drawGallery, focusTile} from './gallery.js';
import {accept, startJobs} from './jobs.js';
import {readSettings} from './png.js';
import {drawQueue} from './queue.js';
import {startViewer} from './viewer.js';

const THEMES = ['system', 'light', 'dark'];
const SECONDS_READY = 15, SECONDS_AGAIN = 2;

let model = '', isReached = true;

function useSettings(request) {
  fill(request);
  notice('The form has these settings now.');
  byId('field-prompt')?.focus();
}

function showServer(name, words) {
  const line = byId('server-state');
  if (line.dataset.state === name && line.lastElementChild.textContent === words) return;
  line.dataset.state = name;
  line.lastElementChild.textContent = words;
}

// Returns whether a world is ready for jobs; until one is, jobs are accepted and wait.
async function askReady() {
  clearTimeout(askReady.timer);
  let isReady = false;
  try {
    const response = await fetch('ready', {cache: 'no-store'});
    isReady = response.ok;
    showServer(isReady ? 'ready' : 'starting', isReady ? 'Ready' : 'Starting');
    isReached = true;
  } catch {
    showServer('lost', 'No connection');
    isReached = false;
  }
  askReady.timer = setTimeout(askReady, 1000 * (isReady ? SECONDS_READY : SECONDS_AGAIN));
}

function onReach(reached) {
  if (reached !== isReached) askReady();
}

async function takeFile(file) {
  try {
    const settings = await readSettings(file), taken = fill(settings);
    const of = settings.model && settings.model !== model ? ` It was made with the model ${settings.model}.` : '';
    notice(`${taken.length} settings taken from ${file.name}.${of}`);
    byId('field-prompt')?.focus();
  } catch (error) {
    notice(error.message, true);
  }
}

function startFiles() {
  const chosen = byId('choose-file'), drop = byId('drop');
  byId('choose').addEventListener('click', () => chosen.click());
  chosen.addEventListener('change', () => {
    if (chosen.files.length > 0) takeFile(chosen.files[0]);
    chosen.value = '';
  });
  const hasFile = event => event.dataTransfer?.types.includes('Files');
  const isBusy = () => document.querySelector('dialog[open]') !== null;
  addEventListener('dragenter', event => { drop.hidden = !hasFile(event) || isBusy(); });
  addEventListener('dragleave', event => { if (event.relatedTarget === null) drop.hidden = true; });
  addEventListener('dragover', event => { if (hasFile(event)) event.preventDefault(); });
  addEventListener('drop', event => {
    drop.hidden = true;
    if (!hasFile(event)) return;
    event.preventDefault();
    if (!isBusy()) takeFile(event.dataTransfer.files[0]);
  });
}

function startTheme() {
  const button = byId('theme');
  const show = name => {
    if (name === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.replaceChildren(icon(...THEME_ICONS[name]));
    button.title = `Theme: ${name}`;
    button.setAttribute('aria-label', button.title);
  };
  let name = localStorage.getItem('tessera-theme') ?? 'system';
  show(name);
  button.addEventListener('click', () => {
    name = THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
    localStorage.setItem('tessera-theme', name);
    show(name);
  });
}

async function start() {
  startTheme();
  startFiles();
  startViewer(useSettings, focusTile);
  byId('key-button').append(icon(...KEY));
  byId('key-button').hidden = !hasKey();
  byId('key-button').addEventListener('click', () => askForKey('Another key shows the jobs of its owner.').then(() => location.reload()));
  askReady();
  for (;;) {
    try {
      const table = await startForm(accept);
      model = table.model ?? '';
      break;
    } catch (error) {
      // Without the fields there is nothing to fill in, so the server is asked until it has sent them.
      showServer('lost', error instanceof ApiError ? error.message : 'No connection');
      await new Promise(done => setTimeout(done, 1000 * SECONDS_AGAIN));
    }
  }
  byId('model').textContent = model;
  byId('main').removeAttribute('aria-busy');
  await startJobs(() => {
    drawQueue(useSettings);
    drawGallery();
  }, onReach);
}

start();

// Makes elements, and writes numbers as words.

export const byId = id => document.getElementById(id);

// Makes an element. `properties` are those of the DOM; names with a dash are attributes. Null values are left out.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes('-') || name === 'role' || name === 'for') element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter(child => child !== null));
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

// Makes an icon of 20 x 20 from paths that are stroked. Screen readers skip it.
export function icon(...paths) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 20 20');
  svg.setAttribute('aria-hidden', 'true');
  for (const d of paths) {
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', d);
    svg.append(path);
  }
  return svg;
}

export const DICE = ['M3.5 3.5h13v13h-13z', 'M7 7h.01', 'M13 7h.01', 'M10 10h.01', 'M7 13h.01', 'M13 13h.01'];
export const SWAP = ['M4 7h12m-3-3 3 3-3 3', 'M16 13H4m3-3-3 3 3 3'];
export const PLAY = ['M7 4.5v11l9-5.5z'];
export const KEY = ['M12.5 3.5a4 4 0 1 1-3.2 6.4L4 15.2V17h2.5v-2H8v-2h1.6', 'M13.5 7h.01'];
export const THEME_ICONS = {
  system: ['M3 4h14v9.5H3z', 'M7 16.5h6'],
  light: ['M10 6.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7', 'M10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M15.7 4.3l-1.1 1.1M5.4 14.6l-1.1 1.1'],
  dark: ['M16.5 11.8A7 7 0 0 1 8.2 3.5a7 7 0 1 0 8.3 8.3z']
};

export const counted = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`;

// Returns a length of time in words, as coarse as an estimate is.
export function duration(seconds) {
  if (seconds < 1) return 'a moment';
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  const hours = seconds / 3600;
  return `${hours < 10 ? hours.toFixed(1) : Math.round(hours)} h`;
}

// Shows texts as the items of a list. Items that are already there stay, so that screen readers do not read them again.
export function drawTexts(list, texts) {
  list.hidden = texts.length === 0;
  const shown = [...list.children].map(item => item.textContent);
  if (shown.length === texts.length && shown.every((text, index) => text === texts[index])) return;
  list.replaceChildren(...texts.map(text => make('li', {textContent: text})));
}

let clearing = 0;

// Has screen readers read a text. The element is emptied first, so that the same words are read again.
export function announce(text) {
  const live = byId('live');
  live.textContent = '';
  clearTimeout(clearing);
  clearing = setTimeout(() => { live.textContent = text; }, 100);
}

// Shows the line above the button that submits the form.
export function notice(text, isError = false) {
  const line = byId('notice');
  line.textContent = text;
  line.classList.toggle('error', isError);
}

// Asks in a dialog; resolves to whether the answer was yes. Each question has a dialog of its own, because the event
// that a dialog was closed comes later, when the dialog may be open again.
export function confirmed(text, yes) {
  const dialog = make('dialog', {id: 'confirm', className: 'small', role: 'alertdialog', 'aria-labelledby': 'confirm-text'},
                      make('form', {method: 'dialog'}, make('p', {id: 'confirm-text', textContent: text}),
                           make('div', {className: 'buttons'}, make('button', {value: 'no', textContent: 'Keep'}),
                                make('button', {id: 'confirm-yes', value: 'yes', className: 'danger', textContent: yes}))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise(resolve => {
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes');
    });
  });
}

// The fields of a request as controls. A control is {field, root, input, isMain, read, write, show, restore, isChanged}: read()
// returns the JSON text of a value (or a promise of it), or null if the server is to choose; write() takes a JSON value; show()
// shows an error or removes it.
import {DICE, icon, make} from './dom.js';

const NAMES = {
  num_inference_steps: 'Steps', guidance_scale: 'Guidance', num_images_per_prompt: 'Pictures', scheduler: 'Sampler',
  num_frames: 'Frames', fps: 'Frame rate', eta: 'Eta', vae_tiling: 'Decode in tiles', format: 'File format', image: 'Reference pictures'
};
// By how much an arrow key changes a number.
const JUMPS = {width: 16, height: 16, guidance_scale: 0.5, fps: 1};
const PROMPTS = ['prompt', 'negative_prompt', 'prompt_2', 'negative_prompt_2'];

export function labelOf(name) {
  const words = name.replace(/^num_/, '').replaceAll('_', ' ');
  return NAMES[name] ?? words[0].toUpperCase() + words.slice(1);
}

// Is short, because it stands beside the label.
function limitsOf({minimum = null, maximum = null}) {
  if (minimum !== null && maximum !== null) return `${minimum}–${maximum}`;
  if (minimum !== null) return `≥ ${minimum}`;
  return maximum !== null ? `≤ ${maximum}` : '';
}

// The control shows the default, and only the command line needs to know how an option is repeated.
const helpOf = ({help = ''}) => help.replace(/ ?\(repeat the option\)/g, '').replace(/ ?\[[^\]]*\]$/, '').trim();

// Files are sent as Base64 inside the request.
const isFiles = ({name}) => name === 'image';
const isNumber = ({type}) => type === 'integer' || type === 'number';
const placeholderOf = field => field.name === 'seed' ? 'random' : field.default === null ? "the model's" : String(field.default);

function selectOf(field) {
  const select = make('select');
  if (field.default === null) select.append(make('option', {value: '', textContent: field.usual ?? "The model's"}));
  for (const choice of field.choices) select.append(make('option', {value: choice, textContent: choice}));
  return select;
}

function numberOf(field) {
  const whole = field.type === 'integer';
  const input = make('input', {type: 'number', inputMode: whole ? 'numeric' : 'decimal', step: whole ? '1' : 'any',
                               min: field.minimum ?? '', max: field.maximum ?? '', placeholder: placeholderOf(field)});
  const jump = JUMPS[field.name] ?? (whole ? 1 : field.maximum !== null && field.maximum <= 1 ? 0.05 : 0.5);
  input.addEventListener('keydown', event => {
    if (event.key !== 'ArrowUp' && event.key !== 'ArrowDown') return;
    event.preventDefault();
    const from = input.value === '' ? field.default ?? field.minimum ?? 0 : Number(input.value);
    const to = from + (event.key === 'ArrowUp' ? jump : -jump);
    input.value = +Math.min(Math.max(to, field.minimum ?? -Infinity), field.maximum ?? Infinity).toFixed(4);
    input.dispatchEvent(new Event('input', {bubbles: true}));
  });
  return input;
}

// Names that a text may have; others are allowed.
function suggestedTexts(field) {
  const list = make('datalist', {id: `field-${field.name}-list`}, ...field.suggestions.map(value => make('option', {value})));
  document.body.append(list);
  const input = make('input', {type: 'text', placeholder: placeholderOf(field), spellcheck: false});
  input.setAttribute('list', list.id);
  return input;
}

function inputOf(field) {
  if (field.choices?.length) return selectOf(field);
  if (field.suggestions?.length) return suggestedTexts(field);
  if (isNumber(field)) return numberOf(field);
  if (field.type === 'flag') return make('input', {type: 'checkbox'});
  if (field.type === 'seed') return make('input', {type: 'text', inputMode: 'numeric', pattern: '[0-9]{1,20}', title: 'Digits', placeholder: placeholderOf(field)});
  if (isFiles(field)) return make('input', {type: 'file', multiple: true, accept: 'image/png,image/jpeg,image/webp'});
  if (PROMPTS.includes(field.name)) return make('textarea', {rows: field.name === 'prompt' ? 5 : 2, spellcheck: true});
  if (field.type === 'texts') return make('textarea', {rows: 2, placeholder: 'one a line', spellcheck: false});
  return make('input', {type: 'text', placeholder: placeholderOf(field)});
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

// Returns the JSON text of the input's value, or null if the input is empty.
function jsonOf(field, input) {
  const text = input.value.trim();
  if (isFiles(field)) return text === '' ? null : Promise.all([...input.files].map(dataUrl)).then(urls => JSON.stringify(urls));
  if (field.type === 'flag') return String(input.checked);
  if (text === '') return field.name === 'prompt' ? '""' : null;
  if (field.type === 'seed') return String(BigInt(text));
  if (isNumber(field)) return JSON.stringify(Number(text));
  if (field.type === 'integers' || field.type === 'numbers') return JSON.stringify(text.split(/[\s,]+/).map(Number));
  if (field.type === 'texts' && !PROMPTS.includes(field.name)) return JSON.stringify(text.split('\n').map(line => line.trim()).filter(Boolean));
  return JSON.stringify(text);
}

function textOf(field, value) {
  if (Array.isArray(value)) return value.join(PROMPTS.includes(field.name) || field.type !== 'texts' ? ', ' : '\n');
  return value === null || value === undefined ? '' : String(value);
}

function diceOf(input) {
  const dice = make('button', {type: 'button', className: 'attached', 'aria-label': 'Draw a seed', title: 'Draw a seed'}, icon(...DICE));
  dice.addEventListener('click', () => {
    input.value = crypto.getRandomValues(new Uint32Array(1))[0];
    input.dispatchEvent(new Event('input', {bubbles: true}));
  });
  return dice;
}

// Makes the button that shows the help of a main field; other fields always show theirs.
function questionOf(id, label, help) {
  const button = make('button', {type: 'button', className: 'question', 'aria-expanded': 'false', 'aria-controls': id, 'aria-label': `About ${label.toLowerCase()}`, textContent: '?'});
  button.addEventListener('click', () => {
    // A help text is as wide as the row, so at most one is open in a row.
    for (const other of button.closest('.row').querySelectorAll('.question[aria-expanded=true]')) {
      if (other !== button) other.click();
    }
    help.hidden = !help.hidden;
    button.setAttribute('aria-expanded', String(!help.hidden));
  });
  return button;
}

export function makeControl(field, isMain) {
  const id = `field-${field.name}`, label = field.label ?? labelOf(field.name), input = inputOf(field), isFlag = field.type === 'flag';
  input.id = id;
  input.name = field.name;
  const help = make('p', {id: `${id}-help`, className: 'help', textContent: helpOf(field), hidden: isMain});
  const error = make('p', {id: `${id}-error`, className: 'fault', hidden: true});
  const limits = make('span', {id: `${id}-limits`, className: 'limits', textContent: limitsOf(field)});
  input.setAttribute('aria-describedby', [limits, help, error].filter(part => part === error || part.textContent).map(part => part.id).join(' '));
  const head = make('div', {className: 'head'}, make('label', {htmlFor: id, textContent: label}),
                    isMain && help.textContent ? questionOf(help.id, label, help) : null, limits.textContent ? limits : null);
  const box = field.type === 'seed' ? make('div', {className: 'joined'}, input, diceOf(input)) : input;
  const root = make('div', {className: isFlag ? 'field flag' : 'field'}, ...(isFlag ? [input, head] : [head, box]), help, error);

  const show = message => {
    error.hidden = !message;
    error.textContent = message ?? '';
    if (message) input.setAttribute('aria-invalid', 'true');
    else input.removeAttribute('aria-invalid');
  };
  const write = value => {
    if (isFlag) input.checked = value ?? field.default ?? false;
    else input.value = isFiles(field) ? '' : textOf(field, value);  // a page may not choose files
    show(null);
  };
  // The value of a main field is always sent. Other fields are sent only if they differ from the default, because some have
  // no effect with some samplers, and the server refuses those.
  const isChanged = () => isFlag ? input.checked !== (field.default ?? false)
                                 : input.value.trim() !== '' && jsonOf(field, input) !== JSON.stringify(field.default);
  const read = () => isMain || isChanged() ? jsonOf(field, input) : null;
  const restore = () => write(isMain || isFlag || field.choices?.length ? field.default : null);
  input.addEventListener('input', () => show(null));
  restore();
  return {field, root, input, isMain, read, write, show, restore, isChanged};
}

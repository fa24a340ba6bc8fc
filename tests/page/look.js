// What a person would stumble over in the page as it stands: gives a list of texts. It is evaluated in the page.
(() => {
  const found = [], all = [...document.querySelectorAll('body *')];
  const dialog = document.querySelector('dialog[open]');
  const isShown = element => element.checkVisibility({visibilityProperty: true, opacityProperty: true, contentVisibilityAuto: true}) && (!dialog || dialog.contains(element)) && !element.closest('.unseen');
  const name = element => `${element.tagName.toLowerCase()}${element.id ? '#' + element.id : ''}.${element.className?.baseVal ?? element.className} "${(element.textContent ?? '').trim().slice(0, 30)}"`;

  // Colours, with what is behind them.
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  function rgba(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((v, i) => i === 3 ? v / 255 : v);
  }
  const over = (front, back) => front.slice(0, 3).map((v, i) => v * front[3] + back[i] * (1 - front[3]));
  function ground(element) {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== 'none') return null;  // above a picture or a gradient
      layers.push(rgba(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
      if (at.tagName === 'DIALOG') break;
    }
    return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255]);
  }
  function brightness(colour) {
    const [r, g, b] = colour.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function contrast(front, back) {
    const [a, b] = [brightness(front), brightness(back)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }

  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = all.filter(element => isShown(element) && element.getBoundingClientRect().right > innerWidth + 1).map(name);
    found.push(`the page is ${document.documentElement.scrollWidth} pixels wide: ${wide.slice(0, 3).join(', ')}`);
  }
  const ids = new Set();
  for (const {id} of all) {
    if (id && ids.has(id)) found.push(`the id ${id} occurs twice`);
    if (id) ids.add(id);
  }
  for (const element of all) {
    for (const attribute of ['aria-describedby', 'aria-labelledby', 'aria-controls', 'for']) {
      for (const id of (element.getAttribute(attribute) ?? '').split(' ').filter(Boolean)) {
        if (!ids.has(id)) found.push(`${name(element)}: ${attribute} names ${id}, which is not there`);
      }
    }
    if (!isShown(element)) continue;
    const box = element.getBoundingClientRect();
    if (element.matches('button, a[href], select, input:not([type=checkbox]), summary') && !element.matches('.skip') && (box.width < 24 || box.height < 24))
      found.push(`${name(element)} is ${Math.round(box.width)} x ${Math.round(box.height)} pixels small`);
    if (element.matches('img') && !element.hasAttribute('alt')) found.push(`${name(element)} has no alt`);
    if (element.matches('button, [role=group]') && element.scrollWidth > element.clientWidth + 1) found.push(`${name(element)}: its text is cut off`);

    const style = getComputedStyle(element), hasText = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const isInput = element.matches('input:not([type=checkbox]), textarea, select');
    const back = hasText || isInput ? ground(element) : null;
    if (!back || element.disabled) continue;
    const size = parseFloat(style.fontSize), least = size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5;
    const seen = contrast(over(rgba(style.color), back), back);
    if (seen < least) found.push(`${name(element)} has a contrast of ${seen.toFixed(2)}`);
    if (!isInput) continue;
    const around = ground(element.parentElement), edge = contrast(rgba(style.borderTopColor), around);
    if (edge < 3) found.push(`${name(element)}: its edge has a contrast of ${edge.toFixed(2)}`);
    if (element.placeholder) {
      const hint = contrast(over(rgba(getComputedStyle(element, '::placeholder').color), back), back);
      if (hint < 4.5) found.push(`${name(element)}: its placeholder has a contrast of ${hint.toFixed(2)}`);
    }
  }
  const levels = [...document.querySelectorAll('h1, h2, h3, h4')].map(heading => Number(heading.tagName[1]));
  if (levels.some((level, i) => level > (levels[i - 1] ?? 0) + 1)) found.push(`headings leave levels out: ${levels}`);
  return found;
})()

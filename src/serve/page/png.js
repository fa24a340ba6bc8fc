// Reads the settings from a PNG that Tessera wrote (docs/formats.md).

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];

// Returns the texts of a PNG (tEXt, and iTXt that is not compressed) by keyword, and throws if the bytes are not a PNG.
export function readTexts(buffer) {
  const bytes = new Uint8Array(buffer), view = new DataView(buffer);
  if (SIGNATURE.some((byte, i) => bytes[i] !== byte)) throw new Error('This file is not a PNG.');
  const texts = new Map();
  for (let at = 8; at + 12 <= bytes.length;) {
    const length = view.getUint32(at), type = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const data = bytes.subarray(at + 8, at + 8 + length);
    at += 12 + length;
    if (type !== 'tEXt' && type !== 'iTXt') continue;
    const keywordEnd = data.indexOf(0);
    if (keywordEnd < 0) continue;
    const keyword = new TextDecoder('latin1').decode(data.subarray(0, keywordEnd));
    if (type === 'tEXt') {
      texts.set(keyword, new TextDecoder('latin1').decode(data.subarray(keywordEnd + 1)));
    } else if (data[keywordEnd + 1] === 0) {
      const languageEnd = data.indexOf(0, keywordEnd + 3), translationEnd = data.indexOf(0, languageEnd + 1);
      if (languageEnd < 0 || translationEnd < 0) continue;
      texts.set(keyword, new TextDecoder().decode(data.subarray(translationEnd + 1)));
    }
  }
  return texts;
}

// Returns the settings as fields of a request, in which seeds are texts. Throws an Error for a person to read.
export async function readSettings(file) {
  const text = readTexts(await file.arrayBuffer()).get('tessera');
  if (text === undefined) throw new Error('This PNG has no settings of Tessera in it.');
  let settings;
  try {
    settings = JSON.parse(text.replace(/"seed"(\s*:\s*)(\d+)/, '"seed"$1"$2"'));
  } catch {
    throw new Error('The settings in this PNG cannot be read.');
  }
  // If the request has several prompts, the picture has its own.
  const number = Math.floor((settings.image_index ?? 0) / (settings.num_images_per_prompt ?? 1));
  for (const name of ['prompt', 'prompt_2', 'negative_prompt', 'negative_prompt_2']) {
    if (Array.isArray(settings[name])) settings[name] = settings[name][Math.min(number, settings[name].length - 1)] ?? '';
  }
  return settings;
}

// Uses a server by the package `openai` of npm, as programs do, and prints what came of it as JSON: openai_client.js URL PART
const OpenAI = require('openai');

const [url, part] = process.argv.slice(2);
const client = new OpenAI({baseURL: `${url}v1`, apiKey: 'none', maxRetries: 0});
const base64 = async response => Buffer.from(await response.arrayBuffer()).toString('base64');
const fast = {num_inference_steps: 2, seed: 5};

// What a promise is rejected with, in the words that programs look at.
const refusal = promise => promise.then(() => null, error => ({kind: error.constructor.name, status: error.status, code: error.code, param: error.param}));

async function collected(iterable) {
  const all = [];
  for await (const each of iterable) all.push(each);
  return all;
}

const parts = {
  async pictures() {
    const prompt = 'a red circle', size = '64x64';
    const inline = await client.images.generate({model: 'shapes', prompt, size, response_format: 'b64_json', ...fast});
    const linked = await client.images.generate({prompt, size, n: 2, response_format: 'url', output_format: 'webp', ...fast});
    const replies = await Promise.all(linked.data.map(each => fetch(each.url)));
    return {
      models: (await collected(client.models.list())).map(each => each.id),
      inline,
      linked: await Promise.all(replies.map(async reply => ({type: reply.headers.get('content-type'), data: await base64(reply)}))),
    };
  },

  async stream() {
    const request = {prompt: 'a red circle', size: '64x64', stream: true, partial_images: 2, num_inference_steps: 40, seed: 1};
    return collected(await client.images.generate(request));
  },

  async refusals() {
    return [
      await refusal(client.images.generate({model: 'dall-e-3', prompt: 'a'})),
      await refusal(client.images.generate({prompt: 'a', size: '63x64'})),
      await refusal(client.videos.create({prompt: 'a'})),
    ];
  },

  async videos() {
    const created = await client.videos.create({prompt: 'a red circle moves left to right', num_frames: 17, ...fast});
    let video = created;
    while (video.status === 'queued' || video.status === 'in_progress') {
      await new Promise(done => setTimeout(done, 50));
      video = await client.videos.retrieve(created.id);
    }
    const content = await base64(await client.videos.downloadContent(created.id));
    const listed = (await collected(client.videos.list())).map(each => each.id);
    const deleted = await client.videos.delete(created.id);
    return {created, video, content, listed, deleted, gone: await refusal(client.videos.retrieve(created.id))};
  },
};

parts[part]().then(value => console.log(JSON.stringify(value)));

// Google's unchanged Node client against the emulator of PUBSUB_EMULATOR_HOST. Prints the results as JSON.
import {createRequire} from 'node:module';

const {PubSub} = createRequire(import.meta.url)('@google-cloud/pubsub');
const COUNT = 20;
const texts = Array.from({length: COUNT}, (_, i) => `m${i}`);

function received(subscription, acknowledge) {
  return new Promise((resolve, reject) => {
    const seen = [];
    subscription.on('error', reject);
    subscription.on('message', async message => {
      const outcome = await acknowledge(message);
      seen.push([message.data.toString(), outcome]);
      if (seen.length === COUNT) resolve(seen);
    });
  });
}

async function refusal(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return error.code;
  }
}

const pubsub = new PubSub({projectId: 'p'});
const [topic] = await pubsub.createTopic({name: 'projects/p/topics/node', labels: {a: 'b'}});
const [ordered] = await topic.createSubscription('ordered', {enableMessageOrdering: true});
const [once] = await topic.createSubscription('once', {enableExactlyOnceDelivery: true});
const publisher = pubsub.topic('node', {messageOrdering: true});
await Promise.all(texts.map(text => publisher.publishMessage({data: Buffer.from(text), orderingKey: 'k'})));

const inOrder = await received(ordered, message => message.ack());
await ordered.close();
const acknowledged = await received(once, message => message.ackWithResponse());
await once.close();

await ordered.setMetadata({ackDeadlineSeconds: 30});
const [metadata] = await ordered.getMetadata();
const [snapshot] = await ordered.createSnapshot('moment');
await ordered.seek('moment');
await snapshot.delete();
const [permissions] = await topic.iam.testPermissions(['pubsub.topics.publish']);
const schema = await pubsub.createSchema('point', 'AVRO', '{"type": "record", "name": "P", "fields": []}');
const encoded = {schemaSettings: {schema: await schema.getName(), encoding: 'JSON'}};
const [points] = await pubsub.createTopic({name: 'projects/p/topics/points', ...encoded});

console.log(JSON.stringify({
  inOrder: inOrder.map(([text]) => text),
  acknowledged: acknowledged.map(([, outcome]) => outcome),
  ackDeadlineSeconds: metadata.ackDeadlineSeconds,
  permissions,
  misfit: await refusal(points.publishMessage({data: Buffer.from('[]')})),
  missing: await refusal(pubsub.topic('missing').get()),
}));
await pubsub.close();

// A caller made with the official SDK. It does what lines of JSON on its standard input say, and answers in kind;
// see tests/interop/scripted_clients.py.
import readline from 'node:readline';
import { randomUUID } from 'node:crypto';
import {
  CancelTaskRequest,
  GetTaskRequest,
  Message,
  SendMessageRequest,
  StreamResponse,
  SubscribeToTaskRequest,
  Task,
  TaskPushNotificationConfig,
} from '@a2a-js/sdk';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client';

const [cardUrl, token, binding] = process.argv.slice(2);
const fetchImpl = (url, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set('Authorization', `Bearer ${token}`);
  return fetch(url, { ...init, headers });
};
const factory = new ClientFactory({
  transports: [new JsonRpcTransportFactory({ fetchImpl }), new RestTransportFactory({ fetchImpl })],
  preferredTransports: [binding],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
const client = await factory.createFromUrl(cardUrl, '');

const say = ({ text, task, context }) =>
  SendMessageRequest.fromJSON({
    message: {
      messageId: randomUUID(),
      role: 'ROLE_USER',
      parts: [{ text }],
      taskId: task,
      contextId: context,
    },
  });

const acts = {
  async send(order) {
    const result = await client.sendMessage(say(order));
    return 'messageId' in result
      ? { message: Message.toJSON(result) }
      : { task: Task.toJSON(result) };
  },
  async stream(order, tell) {
    for await (const event of client.sendMessageStream(say(order))) tell(StreamResponse.toJSON(event));
  },
  async subscribe({ task }, tell) {
    const request = SubscribeToTaskRequest.fromJSON({ id: task });
    for await (const event of client.resubscribeTask(request)) tell(StreamResponse.toJSON(event));
  },
  async get({ task }) {
    return { task: Task.toJSON(await client.getTask(GetTaskRequest.fromJSON({ id: task }))) };
  },
  async cancel({ task }) {
    return { task: Task.toJSON(await client.cancelTask(CancelTaskRequest.fromJSON({ id: task }))) };
  },
  async push({ task, url, secret }) {
    const config = { taskId: task, id: 'interop', url, token: secret };
    const request = TaskPushNotificationConfig.fromJSON(config);
    return TaskPushNotificationConfig.toJSON(
      await client.createTaskPushNotificationConfig(request),
    );
  },
};

const write = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
for await (const line of readline.createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  const tell = (event) => write({ id: order.id, event });
  acts[order.do](order, tell).then(
    (result) => write({ id: order.id, result: result ?? {} }),
    (error) => write({ id: order.id, error: `${error.name}: ${error.message}` }),
  );
}
process.exit(0);

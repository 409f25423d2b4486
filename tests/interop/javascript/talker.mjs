// The agent of tests/conversations made with the official SDK: it does what the first message of a task says.
// Streaming at /s and not at /n, JSON-RPC below /rpc and HTTP+JSON below /rest.
import { randomUUID } from 'node:crypto';
import express from 'express';
import {
  AgentCard,
  Task,
  TaskArtifactUpdateEvent,
  TaskStatusUpdateEvent,
  Message,
} from '@a2a-js/sdk';
import { RequestMalformedError } from '@a2a-js/sdk/errors';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';

import { UserBuilder, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';

const EXTENSION = 'urn:example:ext:one';

class Executor {
  constructor() {
    this.orders = new Map();
    this.turns = new Map();
    this.buses = new Map();
  }

  async execute(context, bus) {
    const ids = { taskId: context.taskId, contextId: context.contextId };
    const said = Message.toJSON(context.userMessage);
    const status = (state, parts) => {
      const made = { state: `TASK_STATE_${state}`, timestamp: new Date().toISOString() };
      if (parts) made.message = { messageId: randomUUID(), role: 'ROLE_AGENT', parts, ...ids };
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ ...ids, status: made })));
    };
    const publish = (task) => bus.publish(AgentEvent.task(Task.fromJSON(task)));
    const asked = context.context?.requestedExtensions;
    if (asked && [...asked].includes(EXTENSION)) context.context.addActivatedExtension?.(EXTENSION);
    if (!context.task) {
      const order = JSON.parse(said.parts[0].text.slice('play '.length));
      this.orders.set(ids.taskId, order);
      this.turns.set(ids.taskId, 0);
      const begun = { state: 'TASK_STATE_SUBMITTED', timestamp: new Date().toISOString() };
      publish({ id: ids.taskId, contextId: ids.contextId, history: [said], status: begun });
      status('WORKING');
      status(order.state, order.parts);
      bus.finished();
      return;
    }
    const order = this.orders.get(ids.taskId);
    const step = order.then[Math.min(this.turns.get(ids.taskId), order.then.length - 1)];
    this.turns.set(ids.taskId, this.turns.get(ids.taskId) + 1);
    if (step === 'pass') {
      bus.finished();
      return;
    }
    const going = { state: 'TASK_STATE_WORKING', timestamp: new Date().toISOString() };
    if (order.resends) publish({ ...Task.toJSON(context.task), status: going });
    if (step === 'refuse') throw new RequestMalformedError('that is no colour');
    if (step === 'raise') throw new Error('the tool broke');
    status('WORKING');
    if (step === 'ask') {
      status(order.state, [{ text: 'and which size?' }]);
    } else {
      const artifact = { artifactId: 'artifact-1', parts: [{ text: 'done' }, ...said.parts] };
      bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON({ ...ids, artifact })));
      status('COMPLETED');
    }
    bus.finished();
  }

  async cancelTask(taskId, bus) {
    const status = { state: 'TASK_STATE_CANCELED', timestamp: new Date().toISOString() };
    const event = { taskId, contextId: '', status };
    bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON(event)));
    bus.finished();
  }
}

const app = express();
const server = app.listen(0, '127.0.0.1', () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  for (const streaming of [true, false]) {
    const base = streaming ? '/s' : '/n';
    const card = AgentCard.fromJSON({
      name: 'javascript',
      description: 'Asks and is answered.',
      version: '1.0.0',
      supportedInterfaces: [
        { url: `${url}${base}/rpc`, protocolBinding: 'JSONRPC', protocolVersion: '1.0' },
        { url: `${url}${base}/rest`, protocolBinding: 'HTTP+JSON', protocolVersion: '1.0' },
      ],
      capabilities: { streaming, extensions: [{ uri: EXTENSION }] },
      defaultInputModes: ['text/plain'],
      defaultOutputModes: ['text/plain'],
      skills: [],
    });
    const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Executor());
    const options = { requestHandler, userBuilder: UserBuilder.noAuthentication };
    app.use(`${base}/rpc`, jsonRpcHandler(options));
    app.use(`${base}/rest`, restHandler(options));
  }
  process.stdout.write(`ready ${url}\n`);
});

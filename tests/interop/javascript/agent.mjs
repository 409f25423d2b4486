// An agent made with the official SDK. The first word of a message says what it does, as tests/support/sdk_agent.py has it.
import { randomUUID } from 'node:crypto';
import express from 'express';
import {
  AgentCard,
  Message,
  Task,
  TaskArtifactUpdateEvent,
  TaskStatusUpdateEvent,
} from '@a2a-js/sdk';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import {
  UserBuilder,
  agentCardHandler,
  jsonRpcHandler,
  restHandler,
} from '@a2a-js/sdk/server/express';

const [binding] = process.argv.slice(2);

class Executor {
  constructor() {
    this.silent = new Map();
  }

  async execute(context, bus) {
    const ids = { taskId: context.taskId, contextId: context.contextId };
    const said = Message.toJSON(context.userMessage);
    const text = said.parts.map((part) => part.text ?? '').join('');
    const [word, ...rest] = text.split(' ');
    const argument = rest.join(' ');
    const message = (words) => ({
      messageId: randomUUID(),
      role: 'ROLE_AGENT',
      parts: [{ text: words }],
      contextId: ids.contextId,
    });
    const status = (state, words) => {
      const made = { state: `TASK_STATE_${state}`, timestamp: new Date().toISOString() };
      if (words) made.message = { ...message(words), taskId: ids.taskId };
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ ...ids, status: made })));
    };
    const artifact = (words, more = {}) => {
      const made = { artifactId: 'artifact-1', parts: [{ text: words }] };
      const event = { ...ids, artifact: made, ...more };
      bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON(event)));
    };
    if (word === 'message') {
      bus.publish(AgentEvent.message(Message.fromJSON(message(argument || 'hello'))));
      bus.finished();
      return;
    }
    const known = context.task
      ? Task.toJSON(context.task)
      : { id: ids.taskId, contextId: ids.contextId, history: [said] };
    const begun = { state: 'TASK_STATE_SUBMITTED', timestamp: new Date().toISOString() };
    bus.publish(AgentEvent.task(Task.fromJSON({ ...known, status: begun })));
    status('WORKING');
    if (word === 'ask') {
      status('INPUT_REQUIRED', argument);
    } else if (word === 'silent') {
      await new Promise((resolve) => this.silent.set(ids.taskId, resolve));
      status('CANCELED');
    } else if (word === 'chunks') {
      const total = Number(argument);
      for (let number = 1; number <= total; number += 1) {
        artifact(`chunk-${number} `, { append: number > 1, lastChunk: number === total });
      }
      status('COMPLETED');
    } else {
      artifact(text);
      status('COMPLETED');
    }
    bus.finished();
  }

  async cancelTask(taskId) {
    this.silent.get(taskId)?.();
    this.silent.delete(taskId);
  }
}

const app = express();
const server = app.listen(0, '127.0.0.1', () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const card = AgentCard.fromJSON({
    name: 'javascript',
    description: 'An agent of the JavaScript SDK.',
    version: '1.0.0',
    supportedInterfaces: [
      { url: `${url}/a2a`, protocolBinding: binding, protocolVersion: '1.0' },
    ],
    capabilities: { streaming: true },
    defaultInputModes: ['text/plain'],
    defaultOutputModes: ['text/plain'],
    skills: [{ id: 'echo', name: 'echo', description: 'Echoes.', tags: ['test'] }],
  });
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Executor());
  const options = { requestHandler, userBuilder: UserBuilder.noAuthentication };
  app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler }));
  app.use('/a2a', binding === 'JSONRPC' ? jsonRpcHandler(options) : restHandler(options));
  process.stdout.write(`ready ${url}\n`);
});

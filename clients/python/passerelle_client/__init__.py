"""Clients of Passerelle: calls of ``/v1``, channels, agents that dial in, A2A over WebSocket, and shared tasks.

Import from the module that owns the noun: ``passerelle_client.api``, ``passerelle_client.channel``,
``passerelle_client.agent``, ``passerelle_client.a2a_websocket`` and ``passerelle_client.tasks``. In the gateway's own
tree the same files are ``passerelle.client``.
"""

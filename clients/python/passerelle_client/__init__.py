"""Clients of Passerelle: the HTTP API ``/v1``, channels, reverse agents, A2A over WebSocket, and shared tasks.

Import from these modules: ``passerelle_client.api``, ``passerelle_client.channel``,
``passerelle_client.agent``, ``passerelle_client.a2a_websocket`` and ``passerelle_client.tasks``. In the gateway's
repository the same files are ``passerelle.client``.
"""

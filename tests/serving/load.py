"""Clients of Triton that keep it busy."""

import selectors
import socket
import sys
import time

import infer


class Load:
    """Clients that each send their next request when the last one is answered: one thread for all, sockets as they are."""

    def __init__(self, port, model, values, clients):
        head, body = infer.body_of(values)
        self._request = ("POST /v2/models/%s/infer HTTP/1.1\r\nHost: l\r\nInference-Header-Content-Length: %d\r\n"
                         "Content-Length: %d\r\n\r\n" % (model, head, len(body))).encode() + body
        self._selector = selectors.DefaultSelector()
        for _ in range(clients):
            s = socket.create_connection(("127.0.0.1", port))
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(s, selectors.EVENT_READ, {"begin": 0, "data": b""})
        self.refused = 0

    def close(self):
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.fileobj.close()

    def _answered(self, state):
        head, found, body = state["data"].partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return False
        self.refused += not head.startswith(b"HTTP/1.1 200")
        return True

    def _came(self, patience):
        """(state, socket) of each client to whom something came."""
        ready = self._selector.select(patience)
        if not ready:
            sys.exit("the server has answered nobody for %g seconds" % patience)
        for key, _ in ready:
            try:
                data = key.fileobj.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                sys.exit("the server has closed a connection")
            key.data["data"] += data
            yield key.data, key.fileobj

    def run(self, seconds, most=10 ** 6, patience=60):
        """Latencies in milliseconds, sorted. Ends the program where the server does not answer any more."""
        times, end = [], time.perf_counter() + seconds
        for key in self._selector.get_map().values():
            key.data.update(begin=time.perf_counter(), data=b"")
            key.fileobj.sendall(self._request)
        waiting = len(self._selector.get_map())
        while waiting:
            for state, s in self._came(patience):
                if not self._answered(state):
                    continue
                now = time.perf_counter()
                times.append((now - state["begin"]) * 1e3)
                if now > end or len(times) > most:
                    waiting -= 1
                    continue
                state.update(begin=now, data=b"")
                s.sendall(self._request)
        return sorted(times)

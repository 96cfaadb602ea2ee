"""Runs inside a sandbox: a loopback port that leads to the proxy's socket.

  python3 relay.py PORT SOCKET CMD ARGS...

Listens on 127.0.0.1:PORT, then starts CMD and carries every connection to the
Unix socket until CMD ends; exits as CMD did (128 + n for signal n). Standing
alone, with nothing but cheap imports: a rollout starts it several times, and
its start-up is CPU time of the training run. Each direction ends by itself, so
a client that half-closes after its request still gets the answer. A proxy that
is being restarted is waited for, then answered for with a 503.
"""

import _thread
import os
import socket
import sys
import time

WAIT_S = 5.0
_BODY = b'{"error": {"message": "the model endpoint is not there"}}'
REFUSED = (
  b'HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n'
  b'Connection: close\r\nContent-Length: %d\r\n\r\n' % len(_BODY)
) + _BODY


def pump(source, sink):
  """Copies until the end of `source`, then ends that direction of `sink`."""
  try:
    while data := source.recv(65536):
      sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
  except OSError:
    # One side is gone: end both, or the other pump would wait for ever.
    for end in (source, sink):
      try:
        end.shutdown(socket.SHUT_RDWR)
      except OSError:
        pass


def connect(path):
  """The proxy's socket, waiting a little for one that restarts."""
  end = time.monotonic() + WAIT_S
  while True:
    upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
      upstream.connect(path)
      return upstream
    except OSError:
      upstream.close()
      if time.monotonic() > end:
        return None
      time.sleep(0.1)


def carry(client, path):
  """Serves one connection; the two directions are independent."""
  upstream = connect(path)
  if upstream is None:
    try:
      client.recv(65536)
      client.sendall(REFUSED)
    except OSError:
      pass
    client.close()
    return
  done = _thread.allocate_lock()
  done.acquire()

  def back():
    pump(upstream, client)
    done.release()

  _thread.start_new_thread(back, ())
  pump(client, upstream)
  done.acquire()
  client.close()
  upstream.close()


def serve(listener, path):
  """Accepts for ever."""
  while True:
    client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _thread.start_new_thread(carry, (client, path))


def main(port, path, argv):
  listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  listener.bind(('127.0.0.1', port))
  listener.listen(128)
  try:
    child = os.posix_spawnp(argv[0], argv, os.environ)
  except OSError as e:
    print(f'{argv[0]}: {e.strerror}', file=sys.stderr)
    return 127
  _thread.start_new_thread(serve, (listener, path))
  _, status = os.waitpid(child, 0)
  code = os.waitstatus_to_exitcode(status)
  return code if code >= 0 else 128 - code


if __name__ == '__main__':
  status = main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)

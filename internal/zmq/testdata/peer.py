# The other side of TestLibzmq: sockets of libzmq, driven by lines on stdin, one line of answer each.
import sys
import zmq

context = zmq.Context()
context.setsockopt(zmq.LINGER, 0)
sockets = {}
poller = zmq.Poller()


def frames(words):
    return [bytes.fromhex(w[1:]) for w in words]  # "x" and hexadecimal digits, so that an empty frame is a word


for line in sys.stdin:
    verb, name, *rest = line.split()
    answer = "ok"
    if verb == "open":
        socket = context.socket(getattr(zmq, rest[0]))
        socket.setsockopt(zmq.RCVTIMEO, 20000)
        socket.setsockopt(zmq.SNDTIMEO, 20000)
        for option in rest[1:]:
            key, value = option.split("=")
            socket.setsockopt(getattr(zmq, key), int(value))
        sockets[name] = socket
    elif verb == "bind":
        sockets[name].bind(rest[0])
        answer = sockets[name].getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    elif verb == "connect":
        sockets[name].connect(rest[0])
    elif verb == "subscribe":
        sockets[name].setsockopt(zmq.SUBSCRIBE, frames(rest)[0])
    elif verb == "unsubscribe":
        sockets[name].setsockopt(zmq.UNSUBSCRIBE, frames(rest)[0])
    elif verb == "send":
        sockets[name].send_multipart(frames(rest))
    elif verb == "receive":
        answer = " ".join("x" + f.hex() for f in sockets[name].recv_multipart())
    elif verb == "close":
        sockets.pop(name).close(0)
    print(answer, flush=True)

package vllm

import (
	"reflect"
	"strings"
	"testing"

	"remora/internal/zmq"
	pb "remora/proto/vllm"
)

func TestKVSources(t *testing.T) {
	one, upper := LocalRanks{0, 1, 1}, LocalRanks{4, 2, 8}
	source := func(rank uint32, change func(s *pb.KvEventSource)) *pb.KvEventSource {
		s := &pb.KvEventSource{
			Transport: "zmq", Endpoint: "tcp://127.0.0.1:5557", DataParallelRank: &rank, Encoding: "msgpack", SchemaVersion: 1,
			BufferSteps: 10_000, Hwm: 100_000, MaxQueueSize: 100_000,
		}
		if change != nil {
			change(s)
		}
		return s
	}
	at := func(endpoint string) func(s *pb.KvEventSource) {
		return func(s *pb.KvEventSource) { s.Endpoint = endpoint }
	}
	tcp := func(host string, port uint16) zmq.Endpoint {
		return zmq.Endpoint{Network: "tcp", Host: host, Port: port}
	}
	loopback := tcp("127.0.0.1", 5557)
	foreign := func(s *pb.KvEventSource) { s.Transport = "ZMQ" }

	for name, test := range map[string]struct {
		told  []*pb.KvEventSource
		ranks LocalRanks
		host  string
		want  []KVSource
		note  string
	}{
		"none":            {nil, upper, "", nil, ""},
		"one":             {[]*pb.KvEventSource{source(0, nil)}, one, "", []KVSource{{Endpoint: loopback}}, ""},
		"order of ranks":  {[]*pb.KvEventSource{source(5, nil), source(4, at("ipc:///run/kv"))}, upper, "", []KVSource{{Rank: 4, Endpoint: zmq.Endpoint{Network: "unix", Path: "/run/kv"}}, {Rank: 5, Endpoint: loopback}}, ""},
		"topic":           {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.Topic = "kv" })}, one, "", []KVSource{{Endpoint: loopback, Topic: "kv"}}, ""},
		"wildcard":        {[]*pb.KvEventSource{source(0, at("tcp://*:5557"))}, one, "engine", []KVSource{{Endpoint: tcp("engine", 5557)}}, ""},
		"any IPv4":        {[]*pb.KvEventSource{source(0, at("tcp://0.0.0.0:5557"))}, one, "10.0.0.1", []KVSource{{Endpoint: tcp("10.0.0.1", 5557)}}, ""},
		"any IPv6":        {[]*pb.KvEventSource{source(0, at("tcp://[::]:5557"))}, one, "::1", []KVSource{{Endpoint: tcp("::1", 5557)}}, ""},
		"replay":          {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.Endpoint, s.ReplayEndpoint = "tcp://*:5557", "tcp://*:6557" })}, one, "engine", []KVSource{{Endpoint: tcp("engine", 5557), Replay: tcp("engine", 6557)}}, ""},
		"replay, given":   {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.ReplayEndpoint = "ipc://@replay" })}, one, "engine", []KVSource{{Endpoint: loopback, Replay: zmq.Endpoint{Network: "unix", Path: "@replay"}}}, ""},
		"foreign as well": {[]*pb.KvEventSource{source(9, foreign), source(0, nil)}, one, "", []KVSource{{Endpoint: loopback}}, `transport "ZMQ"`},
		"told nothing":    {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.Encoding, s.SchemaVersion, s.BufferSteps = "", 0, 0 })}, one, "", []KVSource{{Endpoint: loopback}}, ""},
		"json":            {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.Encoding = "json" })}, one, "", []KVSource{{Endpoint: loopback}}, `encoded as "json"`},
		"later schema":    {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.SchemaVersion = 2 })}, one, "", []KVSource{{Endpoint: loopback}}, "schema version 2"},
	} {
		got, notes, err := kvSources(test.told, test.ranks, test.host)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if text := strings.Join(notes, "\n"); (text == "") != (test.note == "") || !strings.Contains(text, test.note) {
			t.Errorf("%s: notes %q, want %q", name, text, test.note)
		}
	}

	for name, test := range map[string]struct {
		told  []*pb.KvEventSource
		ranks LocalRanks
		want  string
	}{
		"no rank":            {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.DataParallelRank = nil })}, one, "source 0: data_parallel_rank is missing"},
		"rank outside":       {[]*pb.KvEventSource{source(4, nil), source(6, nil)}, upper, "source 1: data_parallel_rank 6 is not local (ranks 4-5 of 8)"},
		"twice":              {[]*pb.KvEventSource{source(4, nil), source(4, nil)}, upper, "two sources for rank 4"},
		"too few":            {[]*pb.KvEventSource{source(4, nil)}, upper, "1 sources that can be used for ranks 4-5 of 8"},
		"all foreign":        {[]*pb.KvEventSource{source(0, foreign)}, one, "0 sources that can be used for rank 0 of 1"},
		"blank endpoint":     {[]*pb.KvEventSource{source(0, at(" "))}, one, "endpoint of rank 0 is blank"},
		"blanks around":      {[]*pb.KvEventSource{source(0, at(" tcp://127.0.0.1:5557"))}, one, "endpoint of rank 0: not a ZeroMQ endpoint"},
		"no scheme":          {[]*pb.KvEventSource{source(0, at("127.0.0.1:5557"))}, one, "the scheme is missing"},
		"no port":            {[]*pb.KvEventSource{source(0, at("tcp://127.0.0.1"))}, one, "is not host:port"},
		"any port":           {[]*pb.KvEventSource{source(0, at("tcp://127.0.0.1:*"))}, one, "no port to connect to"},
		"free text":          {[]*pb.KvEventSource{source(0, at("over there"))}, one, "the scheme is missing"},
		"within the process": {[]*pb.KvEventSource{source(0, at("inproc://kv"))}, one, `transport "inproc"`},
		"bad replay":         {[]*pb.KvEventSource{source(0, func(s *pb.KvEventSource) { s.ReplayEndpoint = "tcp://*" })}, one, "replay_endpoint of rank 0: not a ZeroMQ endpoint"},
	} {
		got, _, err := kvSources(test.told, test.ranks, "engine")
		if got != nil || KindOfError(err) != Protocol || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "GetKvEventSources: ") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, _, err := kvSources([]*pb.KvEventSource{nil, {}}, one, ""); err == nil {
		t.Errorf("empty sources: %+v", got)
	}
}

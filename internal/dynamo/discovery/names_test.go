package discovery

import (
	"errors"
	"strings"
	"testing"
)

func TestValidateName(t *testing.T) {
	for name, good := range map[string]bool{
		"dynamo": true, "a": true, "0": true, "my-ns_2": true, "Dynamo": true, "team.a": true, "ns-\u00e4": true, "a:b%*": true, "_1": true,
		"": false, "a b": false, " a": false, "a/b": false, "a\x00": false, "a\n": false, "a\u00a0b": false, "a\xff": false, "-": false, "__": false, ".": false,
		"..": false, "\u00e4": false,
	} {
		err := ValidateName("namespace", name)
		if good != (err == nil) {
			t.Errorf("ValidateName(%q) = %v", name, err)
		}
		if err != nil && (!errors.Is(err, ErrName) || !strings.Contains(err.Error(), "namespace")) {
			t.Errorf("ValidateName(%q) does not say what is wrong with what: %v", name, err)
		}
	}
}

func TestAddressValidateNamesTheBadPart(t *testing.T) {
	for want, address := range map[string]Address{
		"namespace": {"n/", "c", "e"}, "component": {"n", "c/", "e"}, "endpoint": {"n", "c", "e/"},
	} {
		if err := address.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about the %s", address, err, want)
		}
	}
	if err := (Address{"n", "c", "e"}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestNamesInTransports: the forms that the Rust sidecar was seen to write.
func TestNamesInTransports(t *testing.T) {
	for a, want := range map[Address][4]string{ // path, subject, service, endpoint in the service
		{"dynamo", "backend", "generate"}: {"1a/dynamo/backend/generate", "dynamo_backend.generate-1a", "dynamo_backend", "dynamo_backend-generate-1a"},
		{"TeamA", "Back.End", "Gen.X"}:    {"1a/TeamA/Back.End/Gen.X", "TeamA_Back.End.Gen.X-1a", "teama_back_end", "TeamA_Back_End-Gen_X-1a"},
		{"n\u00fc", "c%d", "e*f"}:         {"1a/n\u00fc/c%25d/e*f", "n\u00fc_c%d.e*f-1a", "n__c_d", "n__c_d-e_f-1a"},
		{"__x", "_y", "_z"}:               {"1a/__x/_y/_z", "__x__y._z-1a", "x__y", "__x__y-_z-1a"},
	} {
		if got := [4]string{a.Path(0x1a), a.Subject(0x1a), a.Service(), a.EndpointService(0x1a)}; got != want {
			t.Errorf("%+v:\ngot  %q\nwant %q", a, got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	a := Address{"dynamo", "backend", "generate"}
	const id = 0x4b465a663d442204
	for got, want := range map[string]string{
		a.Key(id):                    "dynamo/backend/generate/4b465a663d442204",
		a.Key(0xF):                   "dynamo/backend/generate/f",
		a.TCP("127.0.0.1:42769", id): "127.0.0.1:42769/4b465a663d442204/dynamo/backend/generate",
		ChannelKey(Scope{"dynamo", "backend", "generate"}, "kv-events", 0x170774e93eb6d0): "namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/170774e93eb6d0",
		ChannelKey(Scope{"n s", "b.c", ""}, "a/b", 1):                                     "namespace/n%20s/component/b%2Ec/topic/a%2Fb/1",
		ChannelKey(Scope{Namespace: "ns"}, "t_1", 255):                                    "namespace/ns/topic/t_1/ff",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestNewIDIsSmallAndNew(t *testing.T) {
	seen := map[uint64]bool{}
	for range 1000 {
		id := NewID()
		if id == 0 || id >= 1<<53 || seen[id] {
			t.Fatalf("id %d after %d others", id, len(seen))
		}
		seen[id] = true
	}
}

func TestFileNames(t *testing.T) {
	for key, name := range map[string]string{
		"dynamo/backend/generate/1a2b3c4d5e6f7": "dynamo%2Fbackend%2Fgenerate%2F1a2b3c4d5e6f7",
		"a-b_c.d/e":                             "a%2Db%5Fc%2Ed%2Fe",
		"namespace/n%20s/topic/kv-events/1":     "namespace%2Fn%2520s%2Ftopic%2Fkv%2Devents%2F1",
		"\u00e4\x00":                            "%C3%A4%00",
	} {
		if got := encodeFileName(key); got != name {
			t.Errorf("encodeFileName(%q) = %q, want %q", key, got, name)
		}
		if got, err := decodeFileName(name); err != nil || got != key {
			t.Errorf("decodeFileName(%q) = %q, %v", name, got, err)
		}
	}
	for _, foreign := range []string{"", "README.md", ".tmp_0123456789abcdef", "a%2fb", "a%2", "a%", "a%zz", "%41", "a b", "a/b"} {
		if key, err := decodeFileName(foreign); !errors.Is(err, ErrKey) {
			t.Errorf("decodeFileName(%q) = %q, %v", foreign, key, err)
		}
	}
}

func FuzzFileName(f *testing.F) {
	for _, seed := range []string{"dynamo%2Fbackend%2Fgenerate%2F1a2b", "%", "%2", "a%2fb", "%41", ".tmp_", "%00%FF"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if key, err := decodeFileName(name); err == nil {
			if again := encodeFileName(key); again != name {
				t.Errorf("%q decodes to %q, which encodes to %q", name, key, again)
			}
		}
		if name != "" { // any text is a key
			if key, err := decodeFileName(encodeFileName(name)); err != nil || key != name {
				t.Errorf("key %q came back as %q, %v", name, key, err)
			}
		}
	})
}

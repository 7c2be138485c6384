package protocol

// Kind tells which field of a Value counts.
type Kind uint8

// The kinds of a document node. KindNull is zero, so an absent field and a null one read alike, as the wire demands.
const (
	KindNull Kind = iota
	KindBool
	KindInt   // Int; every integer that fits an int64
	KindUint  // Uint; only integers above the largest int64
	KindFloat // Float
	KindString
	KindBytes // MessagePack bin; never from JSON
	KindList
	KindMap
)

// Value is a document that Remora carries without owning its schema: hand-off parameters, extra arguments, JSON schemas.
// It keeps what a round trip through a Go map would lose: the order of keys, integers as integers, uint64 beyond int64.
// The zero Value is null. A Value is immutable once built: share it freely.
type Value struct {
	Kind  Kind
	Bool  bool
	Int   int64
	Uint  uint64
	Float float64
	Str   string
	Bytes []byte
	List  []Value
	Map   []Member
}

// Member is one key of a map Value. A key that came twice is kept once, the last value winning.
type Member struct {
	Key   string
	Value Value
}

// IsNull reports whether v is null or absent.
func (v Value) IsNull() bool { return v.Kind == KindNull }

// Get returns the member named key; ok is false where v is no map or has no such key.
func (v Value) Get(key string) (member Value, ok bool) {
	for i := range v.Map {
		if v.Map[i].Key == key {
			return v.Map[i].Value, true
		}
	}
	return Value{}, false
}

// Null returns the null value.
func Null() Value { return Value{} }

// Bool returns a boolean.
func Bool(b bool) Value { return Value{Kind: KindBool, Bool: b} }

// Int returns an integer.
func Int(i int64) Value { return Value{Kind: KindInt, Int: i} }

// Float returns a float, also where f is whole.
func Float(f float64) Value { return Value{Kind: KindFloat, Float: f} }

// String returns a string.
func String(s string) Value { return Value{Kind: KindString, Str: s} }

// List returns a list, which keeps l.
func List(l ...Value) Value { return Value{Kind: KindList, List: l} }

// Map returns a map, which keeps members. Their keys must differ.
func Map(members ...Member) Value { return Value{Kind: KindMap, Map: members} }

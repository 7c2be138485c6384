package frontdoor

import "remora/internal/tinymodel"

// Model is what the front door has to know of the model that it serves. Its methods may be called from any goroutine.
type Model interface {
	// RenderChat gives the prompt of a conversation that the assistant shall continue.
	RenderChat(messages []Message) ([]uint32, error)
	// Encode gives the ids of a prompt.
	Encode(text string) []uint32
	// TokenBytes gives the bytes that a token adds to the text, for log probabilities; a special's are its name.
	TokenBytes(id uint32) []byte
	// NewDetokenizer begins an answer.
	NewDetokenizer() Detokenizer
	// EOS lists the ids that end an answer and are not shown.
	EOS() []uint32
	// VocabSize is one more than the largest id.
	VocabSize() int
}

// Detokenizer gives an answer's text in whole characters; it belongs to one request.
type Detokenizer interface {
	Push(ids ...uint32) string
	Flush() string // ends the text
}

// Message is one turn of a conversation.
type Message struct {
	Role    string
	Content string
}

// TinyModel is the built-in model.
type TinyModel struct{}

// RenderChat implements Model.
func (TinyModel) RenderChat(messages []Message) ([]uint32, error) {
	turns := make([]tinymodel.Message, len(messages))
	for i, m := range messages {
		turns[i] = tinymodel.Message(m)
	}
	text, err := tinymodel.RenderChat(turns, true)
	if err != nil {
		return nil, err
	}
	return tinymodel.Encode(text), nil
}

// Encode implements Model.
func (TinyModel) Encode(text string) []uint32 { return tinymodel.Encode(text) }

// TokenBytes implements Model.
func (TinyModel) TokenBytes(id uint32) []byte {
	if name := tinymodel.SpecialText(id); name != "" {
		return []byte(name)
	}
	return tinymodel.TokenBytes(id)
}

// NewDetokenizer implements Model.
func (TinyModel) NewDetokenizer() Detokenizer { return new(tinymodel.Detokenizer) }

// EOS implements Model.
func (TinyModel) EOS() []uint32 { return []uint32{tinymodel.EOS} }

// VocabSize implements Model.
func (TinyModel) VocabSize() int { return tinymodel.VocabSize }

package h2

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// contentType is what gRPC requests and answers carry; answers may have a suffix or parameters.
const contentType = "application/grpc"

// answer is what a block of response headers amounts to.
type answer struct {
	ignore   bool   // informational: the real headers follow
	headers  bool   // the stream is open
	encoding string // of its messages
	end      End    // when neither
	broken   bool   // the end is our verdict and not the peer's word
}

// readHeaders judges a header block. initial: it is the first one of its stream; last: it ends the stream. A block that
// is not initial is last.
//
// The codes are those that gRPC's documents give for answers of servers and proxies that are no gRPC.
func readHeaders(fields []hpack.HeaderField, initial, last bool) answer {
	var status, message, encoding, httpStatus string
	var hasStatus bool
	grpc := !initial // then the first block has shown it
	typeError := "malformed header: missing HTTP content-type"
	for _, field := range fields {
		switch field.Name {
		case "content-type":
			if isGRPC(field.Value) {
				grpc = true
			} else {
				typeError = fmt.Sprintf("transport: received unexpected content-type %q", field.Value)
			}
		case "grpc-status":
			status, hasStatus = field.Value, true
		case "grpc-message":
			message = percentDecode(field.Value)
		case "grpc-encoding":
			encoding = field.Value
		case ":status":
			httpStatus = field.Value
		}
	}
	switch {
	case !grpc:
		return notGRPC(httpStatus, typeError, last)
	case !last:
		return answer{headers: true, encoding: encoding}
	case !hasStatus:
		return answer{end: End{Code: codes.Unknown}}
	}
	code, err := strconv.ParseInt(status, 10, 32)
	if err != nil {
		return verdict(codes.Unknown, fmt.Sprintf("transport: malformed grpc-status %q", status))
	}
	if code == 0 {
		message = "" // an OK has nothing to say
	}
	return answer{end: End{Code: codes.Code(uint32(code)), Message: message, Transport: isTransport(codes.Code(uint32(code)))}}
}

// isTransport: an engine never writes UNAVAILABLE. It comes from a proxy that has lost the engine, which is the same to us
// as losing it.
func isTransport(code codes.Code) bool { return code == codes.Unavailable }

func notGRPC(status, typeError string, last bool) answer {
	if status == "" {
		return verdict(codes.Internal, "malformed header: missing HTTP status; "+typeError)
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		return verdict(codes.Internal, fmt.Sprintf("transport: malformed http-status %q", status))
	}
	if code >= 100 && code < 200 {
		if last {
			return verdict(codes.Internal, fmt.Sprintf("protocol error: informational header with status code %d ends the stream", code))
		}
		return answer{ignore: true}
	}
	return verdict(httpCode(code), fmt.Sprintf("unexpected HTTP status code received from server: %d (%s); %s", code, http.StatusText(code), typeError))
}

func verdict(code codes.Code, text string) answer {
	return answer{end: End{Code: code, Message: text, Transport: isTransport(code)}, broken: true}
}

func httpCode(status int) codes.Code {
	switch status {
	case http.StatusBadRequest:
		return codes.Internal
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.Unimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return codes.Unavailable
	default:
		return codes.Unknown
	}
}

// resetEnd is the end that a peer's RST_STREAM makes. Its code is a guess, as gRPC's documents say to guess.
func resetEnd(code http2.ErrCode) End {
	end := End{Message: fmt.Sprintf("stream terminated by RST_STREAM with error code: %v", code), Transport: true}
	switch code {
	case http2.ErrCodeRefusedStream:
		end.Code, end.NotSent = codes.Unavailable, true
	case http2.ErrCodeCancel:
		end.Code = codes.Canceled
	case http2.ErrCodeFlowControl, http2.ErrCodeEnhanceYourCalm:
		end.Code = codes.ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		end.Code = codes.PermissionDenied
	case http2.ErrCodeNo, http2.ErrCodeProtocol, http2.ErrCodeInternal, http2.ErrCodeSettingsTimeout, http2.ErrCodeStreamClosed,
		http2.ErrCodeFrameSize, http2.ErrCodeCompression, http2.ErrCodeConnect, http2.ErrCodeHTTP11Required:
		end.Code = codes.Internal
	default:
		end.Code = codes.Unknown
	}
	return end
}

func isGRPC(value string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(value), contentType)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// percentDecode reads grpc-message. What is no escape stands for itself.
func percentDecode(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if value, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				out.WriteByte(byte(value))
				i += 2
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

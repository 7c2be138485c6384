// Package differential holds tests alone: they send the same requests to the stock Rust sidecar and to Remora, each in front
// of an engine that runs the same script, and compare what both did.
//
// A case is data: the members of a request body, the script of the engine, what the frontend does meanwhile (case_test.go). What
// is compared is one flat document a side (observation_test.go): every field of every engine request by its protobuf name, every
// field of every frame by its key, absent and null being different, the kinds and the order of the frames, the acknowledgement,
// and where it matters what the engine saw afterwards (aborts, drops). Both sides must say the same at every path. A difference
// must be one of the table in differences_test.go, which says why it is there and which row of docs/differences.md tells users;
// an entry that no case needs any more, or without its row, fails as well.
//
// TestCommandLines does the same with a thousand command lines and environments: taken or refused, exit code, what the complaint
// names, and what a worker that starts has made of it.
//
// The frontend's side is written here once more, from the bytes up (wire_test.go): it can send what a good client never would,
// and it does not share its mistakes with the code that it judges.
//
// Without flags each case runs in the first of its roles; -full runs it in all of them and in both encodings, and adds the
// groups that start a pair of sidecars for every case.
package differential

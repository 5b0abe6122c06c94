; Compute of an OrtNodeComputeInfo, without Python where a plan fits. `native.py` writes what it reads, in words of 64
; bits:
;   info:    version, CreateState, Compute, ReleaseState, the table of the C API, first plan, Compute in Python
;   plan:    next plan, mutex, whether to wait for it, pool, steps, their number, inputs, their rows, outputs, their rows,
;            tw_run
;   row:     rank, extents, bytes, fixed memory (0: none), number of cells, cells
;   cell:    its address, the offset to add to that of the tensor
; Places in the table: GetTensorMutableData 51, GetDimensionsCount 61, GetDimensions 62, GetTensorTypeAndShape 65,
; KernelContext_GetInput 90, KernelContext_GetOutput 91, ReleaseStatus 93, ReleaseTensorTypeAndShapeInfo 99.

declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_trylock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @word(ptr %row, i64 %n) alwaysinline {
  %at = getelementptr i64, ptr %row, i64 %n
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @address(ptr %row, i64 %n) alwaysinline {
  %at = getelementptr ptr, ptr %row, i64 %n
  %value = load ptr, ptr %at
  ret ptr %value
}

; Whether the inputs of a run have the extents of a plan.
define internal i1 @fits(ptr %api, ptr %context, ptr %plan) {
entry:
  %value = alloca ptr
  %info = alloca ptr
  %rank = alloca i64
  %extents = alloca [16 x i64]
  %get_input = call ptr @address(ptr %api, i64 90)
  %get_info = call ptr @address(ptr %api, i64 65)
  %get_rank = call ptr @address(ptr %api, i64 61)
  %get_extents = call ptr @address(ptr %api, i64 62)
  %release = call ptr @address(ptr %api, i64 99)
  %release_status = call ptr @address(ptr %api, i64 93)
  %count = call i64 @word(ptr %plan, i64 6)
  %rows = call ptr @address(ptr %plan, i64 7)
  br label %input
input:
  %n = phi i64 [ 0, %entry ], [ %next, %same ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %look, label %yes
look:
  %row.offset = mul i64 %n, 6
  %row = getelementptr i64, ptr %rows, i64 %row.offset
  store ptr null, ptr %value
  %status = call ptr %get_input(ptr %context, i64 %n, ptr %value)
  %is_fine = icmp eq ptr %status, null
  br i1 %is_fine, label %given, label %failed
failed:
  call void %release_status(ptr %status)
  br label %no
given:
  %tensor = load ptr, ptr %value
  %is_there = icmp ne ptr %tensor, null
  br i1 %is_there, label %measure, label %no
measure:
  %info.status = call ptr %get_info(ptr %tensor, ptr %info) ; refused for what is no tensor, such as None
  %is_info = icmp eq ptr %info.status, null
  br i1 %is_info, label %ranked, label %untold
untold:
  call void %release_status(ptr %info.status)
  br label %no
ranked:
  %shape = load ptr, ptr %info
  call ptr %get_rank(ptr %shape, ptr %rank)
  %own_rank = load i64, ptr %rank
  %wanted_rank = call i64 @word(ptr %row, i64 0)
  %is_rank = icmp eq i64 %own_rank, %wanted_rank
  br i1 %is_rank, label %compare, label %differs
compare:
  call ptr %get_extents(ptr %shape, ptr %extents, i64 %own_rank)
  %wanted = call ptr @address(ptr %row, i64 1)
  br label %axis
axis:
  %a = phi i64 [ 0, %compare ], [ %a.next, %equal ]
  %a.more = icmp slt i64 %a, %own_rank
  br i1 %a.more, label %extent, label %release_info
extent:
  %own.at = getelementptr i64, ptr %extents, i64 %a
  %own = load i64, ptr %own.at
  %want = call i64 @word(ptr %wanted, i64 %a)
  %a.same = icmp eq i64 %own, %want
  br i1 %a.same, label %equal, label %differs
equal:
  %a.next = add i64 %a, 1
  br label %axis
differs:
  call void %release(ptr %shape)
  br label %no
release_info:
  call void %release(ptr %shape)
  br label %same
same:
  %next = add i64 %n, 1
  br label %input
yes:
  ret i1 true
no:
  ret i1 false
}

; Write the address of a tensor, with their offsets, to the cells of a row.
define internal void @bind(ptr %row, i64 %tensor) {
entry:
  %count = call i64 @word(ptr %row, i64 4)
  %cells = call ptr @address(ptr %row, i64 5)
  br label %cell
cell:
  %n = phi i64 [ 0, %entry ], [ %next, %write ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %write, label %done
write:
  %place = mul i64 %n, 2
  %pair = getelementptr i64, ptr %cells, i64 %place
  %to = call ptr @address(ptr %pair, i64 0)
  %offset = call i64 @word(ptr %pair, i64 1)
  %at = add i64 %tensor, %offset
  store i64 %at, ptr %to
  %next = add i64 %n, 1
  br label %cell
done:
  ret void
}

; Run a plan whose mutex is held. Gives a status, null where all went well.
define internal ptr @execute(ptr %api, ptr %context, ptr %plan) {
entry:
  %value = alloca ptr
  %memory = alloca ptr
  %get_input = call ptr @address(ptr %api, i64 90)
  %get_output = call ptr @address(ptr %api, i64 91)
  %get_data = call ptr @address(ptr %api, i64 51)
  %inputs = call i64 @word(ptr %plan, i64 6)
  %input_rows = call ptr @address(ptr %plan, i64 7)
  %outputs = call i64 @word(ptr %plan, i64 8)
  %output_rows = call ptr @address(ptr %plan, i64 9)
  br label %input
input:
  %n = phi i64 [ 0, %entry ], [ %n.next, %taken ]
  %n.more = icmp slt i64 %n, %inputs
  br i1 %n.more, label %take, label %output
take:
  %row.offset = mul i64 %n, 6
  %row = getelementptr i64, ptr %input_rows, i64 %row.offset
  %in.status = call ptr %get_input(ptr %context, i64 %n, ptr %value)
  %in.fine = icmp eq ptr %in.status, null
  br i1 %in.fine, label %in.data, label %fault
in.data:
  %tensor = load ptr, ptr %value
  %data.status = call ptr %get_data(ptr %tensor, ptr %memory)
  %data.fine = icmp eq ptr %data.status, null
  br i1 %data.fine, label %in.where, label %fault
in.where:
  %source = load ptr, ptr %memory
  %staged = call ptr @address(ptr %row, i64 3)
  %is_staged = icmp ne ptr %staged, null
  br i1 %is_staged, label %in.copy, label %in.bind
in.copy:
  %in.bytes = call i64 @word(ptr %row, i64 2)
  call void @llvm.memcpy.p0.p0.i64(ptr %staged, ptr %source, i64 %in.bytes, i1 false)
  br label %taken
in.bind:
  %source.at = ptrtoint ptr %source to i64
  call void @bind(ptr %row, i64 %source.at)
  br label %taken
taken:
  %n.next = add i64 %n, 1
  br label %input
output:
  %m = phi i64 [ 0, %input ], [ %m.next, %made ]
  %m.more = icmp slt i64 %m, %outputs
  br i1 %m.more, label %make, label %run
make:
  %out.offset = mul i64 %m, 6
  %out = getelementptr i64, ptr %output_rows, i64 %out.offset
  %fixed = call ptr @address(ptr %out, i64 3)
  %is_fixed = icmp ne ptr %fixed, null
  br i1 %is_fixed, label %made, label %allot
allot:
  %rank = call i64 @word(ptr %out, i64 0)
  %extents = call ptr @address(ptr %out, i64 1)
  %out.status = call ptr %get_output(ptr %context, i64 %m, ptr %extents, i64 %rank, ptr %value)
  %out.fine = icmp eq ptr %out.status, null
  br i1 %out.fine, label %out.data, label %fault
out.data:
  %result = load ptr, ptr %value
  %result.status = call ptr %get_data(ptr %result, ptr %memory)
  %result.fine = icmp eq ptr %result.status, null
  br i1 %result.fine, label %out.bind, label %fault
out.bind:
  %result.at = load i64, ptr %memory
  call void @bind(ptr %out, i64 %result.at)
  br label %made
made:
  %m.next = add i64 %m, 1
  br label %output
run:
  %pool = call ptr @address(ptr %plan, i64 3)
  %steps = call ptr @address(ptr %plan, i64 4)
  %count = call i64 @word(ptr %plan, i64 5)
  %tw_run = call ptr @address(ptr %plan, i64 10)
  call void %tw_run(ptr %pool, ptr %steps, i64 %count, ptr null)
  br label %hand
hand:
  %k = phi i64 [ 0, %run ], [ %k.next, %given ]
  %k.more = icmp slt i64 %k, %outputs
  br i1 %k.more, label %give, label %done
give:
  %res.offset = mul i64 %k, 6
  %res = getelementptr i64, ptr %output_rows, i64 %res.offset
  %res.fixed = call ptr @address(ptr %res, i64 3)
  %res.is_fixed = icmp ne ptr %res.fixed, null
  br i1 %res.is_fixed, label %res.allot, label %given
res.allot:
  %res.rank = call i64 @word(ptr %res, i64 0)
  %res.extents = call ptr @address(ptr %res, i64 1)
  %res.status = call ptr %get_output(ptr %context, i64 %k, ptr %res.extents, i64 %res.rank, ptr %value)
  %res.fine = icmp eq ptr %res.status, null
  br i1 %res.fine, label %res.data, label %fault
res.data:
  %res.value = load ptr, ptr %value
  %copy.status = call ptr %get_data(ptr %res.value, ptr %memory)
  %copy.fine = icmp eq ptr %copy.status, null
  br i1 %copy.fine, label %res.copy, label %fault
res.copy:
  %to = load ptr, ptr %memory
  %res.bytes = call i64 @word(ptr %res, i64 2)
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %res.fixed, i64 %res.bytes, i1 false)
  br label %given
given:
  %k.next = add i64 %k, 1
  br label %hand
fault:
  %told = phi ptr [ %in.status, %take ], [ %data.status, %in.data ], [ %out.status, %allot ],
                  [ %result.status, %out.data ], [ %res.status, %res.allot ], [ %copy.status, %res.data ]
  ret ptr %told
done:
  ret ptr null
}

define ptr @tw_compute(ptr %info, ptr %state, ptr %context) {
entry:
  %api = call ptr @address(ptr %info, i64 4)
  %first.at = getelementptr ptr, ptr %info, i64 5
  %first = load atomic ptr, ptr %first.at acquire, align 8
  br label %look
look:
  %plan = phi ptr [ %first, %entry ], [ %next, %pass ]
  %is_plan = icmp ne ptr %plan, null
  br i1 %is_plan, label %try, label %python
try:
  %mutex = call ptr @address(ptr %plan, i64 1)
  %is_fit = call i1 @fits(ptr %api, ptr %context, ptr %plan)
  br i1 %is_fit, label %claim, label %pass
claim:
  %waits = call i64 @word(ptr %plan, i64 2)
  %does_wait = icmp ne i64 %waits, 0
  br i1 %does_wait, label %lock, label %trylock
lock:
  call i32 @pthread_mutex_lock(ptr %mutex)
  br label %go
trylock:
  %busy = call i32 @pthread_mutex_trylock(ptr %mutex)
  %is_free = icmp eq i32 %busy, 0
  br i1 %is_free, label %go, label %pass
pass:
  %next = call ptr @address(ptr %plan, i64 0)
  br label %look
go:
  %status = call ptr @execute(ptr %api, ptr %context, ptr %plan)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret ptr %status
python:
  %compute = call ptr @address(ptr %info, i64 6)
  %told = call ptr %compute(ptr %info, ptr %state, ptr %context)
  ret ptr %told
}

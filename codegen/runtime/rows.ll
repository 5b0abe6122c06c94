; tw_write_rows: rows of a tensor replaced by others, in order, so that of several for a place the last one stays. An
; iteration is a part of all rows: threads share them, and none writes what another does.

; Places, the rows that go there, the rows of the tensor. Then numbers: how many go there, how many rows the tensor has,
; bytes of a row, and bytes of a part of it. A place that the tensor has not is for nobody.
%Write = type { ptr, ptr, ptr, i64, i64, i64, i64 }

define void @tw_write_rows(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %places = load ptr, ptr %args
  %sources.at = getelementptr %Write, ptr %args, i32 0, i32 1
  %sources = load ptr, ptr %sources.at
  %rows.at = getelementptr %Write, ptr %args, i32 0, i32 2
  %rows = load ptr, ptr %rows.at
  %count.at = getelementptr %Write, ptr %args, i32 0, i32 3
  %count = load i64, ptr %count.at
  %most.at = getelementptr %Write, ptr %args, i32 0, i32 4
  %most = load i64, ptr %most.at
  %width.at = getelementptr %Write, ptr %args, i32 0, i32 5
  %width = load i64, ptr %width.at
  %part.at = getelementptr %Write, ptr %args, i32 0, i32 6
  %part = load i64, ptr %part.at
  switch i64 %width, label %parts [ i64 4, label %words
                                    i64 8, label %pairs ]
words:
  %i = phi i64 [ 0, %entry ], [ %i.next, %word.next ]
  %more.words = icmp slt i64 %i, %count
  br i1 %more.words, label %word, label %done
word:
  %word.place.at = getelementptr i64, ptr %places, i64 %i
  %word.place = load i64, ptr %word.place.at
  %word.fits = icmp ult i64 %word.place, %most
  br i1 %word.fits, label %word.write, label %word.next
word.write:
  %word.from = getelementptr i32, ptr %sources, i64 %i
  %word.value = load i32, ptr %word.from
  %word.to = getelementptr i32, ptr %rows, i64 %word.place
  store i32 %word.value, ptr %word.to
  br label %word.next
word.next:
  %i.next = add i64 %i, 1
  br label %words
pairs:
  %j = phi i64 [ 0, %entry ], [ %j.next, %pair.next ]
  %more.pairs = icmp slt i64 %j, %count
  br i1 %more.pairs, label %pair, label %done
pair:
  %pair.place.at = getelementptr i64, ptr %places, i64 %j
  %pair.place = load i64, ptr %pair.place.at
  %pair.fits = icmp ult i64 %pair.place, %most
  br i1 %pair.fits, label %pair.write, label %pair.next
pair.write:
  %pair.from = getelementptr i64, ptr %sources, i64 %j
  %pair.value = load i64, ptr %pair.from
  %pair.to = getelementptr i64, ptr %rows, i64 %pair.place
  store i64 %pair.value, ptr %pair.to
  br label %pair.next
pair.next:
  %j.next = add i64 %j, 1
  br label %pairs
parts: ; from the first byte to behind the last one of each row
  %first = mul i64 %begin, %part
  %behind = mul i64 %end, %part
  %last = call i64 @llvm.smin.i64(i64 %behind, i64 %width)
  %length = sub i64 %last, %first
  br label %check
check:
  %k = phi i64 [ 0, %parts ], [ %k.next, %next ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %row, label %done
row:
  %place.at = getelementptr i64, ptr %places, i64 %k
  %place = load i64, ptr %place.at
  %fits = icmp ult i64 %place, %most
  br i1 %fits, label %write, label %next
write:
  %from.row = mul i64 %k, %width
  %from.byte = add i64 %from.row, %first
  %from = getelementptr i8, ptr %sources, i64 %from.byte
  %to.row = mul i64 %place, %width
  %to.byte = add i64 %to.row, %first
  %to = getelementptr i8, ptr %rows, i64 %to.byte
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %length, i1 false)
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %check
done:
  ret void
}

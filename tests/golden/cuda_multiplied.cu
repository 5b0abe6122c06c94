template <typename T, int N> struct alignas(sizeof(T) * N) Lanes { T at[N]; };
template <typename T> static __device__ __forceinline__ T least(T a, T b) { return b < a || b != b ? b : a; }
template <typename T> static __device__ __forceinline__ T largest(T a, T b) { return b > a || b != b ? b : a; }
static __device__ __forceinline__ float least(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
static __device__ __forceinline__ float largest(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
template <typename T> static __device__ __forceinline__ T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
static __device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
template <typename To, typename From> static __device__ __forceinline__ To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To result;
  memcpy(&result, &x, sizeof(To));
  return result;
}
static __device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ unsigned shared_place(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
static __device__ __forceinline__ unsigned long long global_place(const void* place) {
  return static_cast<unsigned long long>(__cvta_generic_to_global(place));
}
static __device__ __forceinline__ void mma_m16n8k8_f32_tf32(float* d, const unsigned* a, const unsigned* b, const float* c) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
static __device__ __forceinline__ void cp_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
      :: "r"(shared_place(to)), "l"(global_place(from)) : "memory");
}
static __device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void cp_async_wait_0() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(128) kernel_p0(const float* p0, const float* p1, float* p2) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int v1 = blockIdx.x;
  const int v2 = blockIdx.y;
  float* s3 = reinterpret_cast<float*>(smem + 0);
  float* s4 = reinterpret_cast<float*>(smem + 2048);
  const int v5 = threadIdx.x / 32;
  const int v6 = threadIdx.x % 32;
  await_previous();
  alignas(16) float r7[8];
  alignas(16) float r8[2];
  alignas(16) float r9[4];
  #pragma unroll
  for (int v10 = 0; v10 < 2; ++v10) {
    #pragma unroll
    for (int v11 = 0; v11 < 4; ++v11) {
      r7[v10 * 4 + v11] = 0x0.0p+0f;
    }
  }
  if ((v5 < 2)) {
    const int t12 = (((v5 % 2) * 32) + v6);
    cp_async_16(reinterpret_cast<void*>(s4 + (0 * 256 + (t12 / 2) * 8 + (((t12 % 2) * 4) + 0))), reinterpret_cast<const void*>(p0 + (((v2 * 32) + (t12 / 2)) * 64 + (((t12 % 2) * 4) + 0))));
  }
  if ((2 <= v5)) {
    const int t13 = (((v5 % 2) * 32) + v6);
    const int t14 = ((t13 % 8) * 4);
    cp_async_16(reinterpret_cast<void*>(s3 + (0 * 256 + (t13 / 8) * 32 + (t14 + 0))), reinterpret_cast<const void*>(p1 + ((t13 / 8) * 64 + (((v1 * 32) + t14) + 0))));
  }
  cp_async_commit();
  #pragma unroll 1
  for (int v15 = 0; v15 < 8; ++v15) {
    cp_async_wait_0();
    __syncthreads();
    if (((v15 + 1) < 8)) {
      if ((v5 < 2)) {
        const int t16 = (v15 + 1);
        const int t17 = (((v5 % 2) * 32) + v6);
        const int t18 = ((t17 % 2) * 4);
        cp_async_16(reinterpret_cast<void*>(s4 + ((t16 % 2) * 256 + (t17 / 2) * 8 + (t18 + 0))), reinterpret_cast<const void*>(p0 + (((v2 * 32) + (t17 / 2)) * 64 + (((t16 * 8) + t18) + 0))));
      }
      if ((2 <= v5)) {
        const int t19 = (v15 + 1);
        const int t20 = (((v5 % 2) * 32) + v6);
        const int t21 = ((t20 % 8) * 4);
        cp_async_16(reinterpret_cast<void*>(s3 + ((t19 % 2) * 256 + (t20 / 8) * 32 + (t21 + 0))), reinterpret_cast<const void*>(p1 + (((t19 * 8) + (t20 / 8)) * 64 + (((v1 * 32) + t21) + 0))));
      }
      cp_async_commit();
    }
    const float l22 = s4[(v15 % 2) * 256 + (((v5 / 2) * 16) + (v6 / 4)) * 8 + (v6 % 4)];
    r9[0] = l22;
    const float l23 = s4[(v15 % 2) * 256 + ((((v5 / 2) * 16) + (v6 / 4)) + 8) * 8 + (v6 % 4)];
    r9[1] = l23;
    const float l24 = s4[(v15 % 2) * 256 + (((v5 / 2) * 16) + (v6 / 4)) * 8 + ((v6 % 4) + 4)];
    r9[2] = l24;
    const float l25 = s4[(v15 % 2) * 256 + ((((v5 / 2) * 16) + (v6 / 4)) + 8) * 8 + ((v6 % 4) + 4)];
    r9[3] = l25;
    #pragma unroll
    for (int v26 = 0; v26 < 2; ++v26) {
      const float l27 = s3[(v15 % 2) * 256 + (v6 % 4) * 32 + ((((v5 % 2) * 16) + (v26 * 8)) + (v6 / 4))];
      r8[0] = l27;
      const float l28 = s3[(v15 % 2) * 256 + ((v6 % 4) + 4) * 32 + ((((v5 % 2) * 16) + (v26 * 8)) + (v6 / 4))];
      r8[1] = l28;
      mma_m16n8k8_f32_tf32(reinterpret_cast<float*>(r7 + (v26 * 4 + (0 + 0))), reinterpret_cast<const unsigned*>(r9 + ((0 + 0))), reinterpret_cast<const unsigned*>(r8 + ((0 + 0))), reinterpret_cast<const float*>(r7 + (v26 * 4 + (0 + 0))));
    }
  }
  #pragma unroll
  for (int v29 = 0; v29 < 2; ++v29) {
    #pragma unroll
    for (int v30 = 0; v30 < 2; ++v30) {
      const float l31 = r7[v29 * 4 + ((v30 * 2) + 0)];
      const float l32 = r7[v29 * 4 + ((v30 * 2) + 1)];
      *reinterpret_cast<Lanes<float, 2>*>(p2 + (((((v2 * 32) + ((v5 / 2) * 16)) + (v6 / 4)) + (8 * v30)) * 64 + (((((v1 * 32) + ((v5 % 2) * 16)) + (v29 * 8)) + ((v6 % 4) * 2)) + 0))) = {{l31, l32}};
    }
  }
}
